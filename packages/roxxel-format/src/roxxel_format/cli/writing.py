"""Commands that write: copy and clean."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from roxxel_store.command import Progress, UsageError, size
from roxxel_store.files import Output
from roxxel_store.screen import counted, note, say, short_size, whole_count
from roxxel_store.signature import given
from roxxel_store.urls import url_of

from roxxel_format._write.driver import CorpusWrite
from roxxel_format._write.recipe import Recipe, Separator
from roxxel_format._write.tokenizers import load
from roxxel_format.corpus import Roxxel
from roxxel_format.foreign import ForeignFormat, foreign_format, open_foreign

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """How to read the tokens of another program.

    Attributes:
        format: The source's format (default: by its name and its first bytes).
        dtype: Type of tokens without a header, such as uint16.
        offset: Bytes before the first token of each flat file (default: a header of
            .npy or llm.c, else 0).
        separator: The token that ends each document, or its name in --tokenizer; flat
            files need it, and none makes all their tokens one document (default: as
            the source says).
        tokenizer: The tokenizer of the tokens, to record it: tokenizer.json, its
            folder, or a Hugging Face name (default: none is recorded).
        max_shard_bytes: Largest size of a shard, such as 1G; a larger document has a
            shard of its own (default: no limit).

    Example:
        >>> Foreign(dtype="uint16", separator=50256).dtype
        'uint16'
    """

    format: ForeignFormat | None = None
    dtype: Annotated[str | None, "DTYPE"] = None
    offset: Annotated[int | None, partial(size, least=0), "BYTES"] = None
    separator: Annotated[int | str | Separator | None, Separator.parse, "TOKEN"] = (
        Separator.OF_TOKENIZER
    )
    tokenizer: Annotated[str | None, "PATH"] = None
    max_shard_bytes: Annotated[int | None, size, "BYTES"] = None


def copy(
    source: Annotated[str, "a file, a folder, a pattern, or a URL of these"],
    target: Annotated[
        str,
        "a folder or a pattern, or a URL of one; or a flat .npy or .bin file",
    ],
    *,
    exist: Literal["error", "replace"] = "error",
    foreign: Foreign,
) -> None:
    """Copy a corpus between folders, buckets and other formats.

    Versions and columns are copied too. Every block is verified, and the commit comes
    last. Run the same command again to continue an interrupted copy, or to bring a copy
    up to date. Tokens of another program (nanoGPT, llm.c, OLMo, Megatron, datatrove)
    become shards with documents. For programs that do not read shards, write all tokens
    into one flat file: .npy, or .bin without a header.

    Args:
        source: What to copy.
        target: Where to.
        exist: If the target is another corpus, or a flat file, replace it, or stop.
        foreign: From another format.

    Example:
        roxxel format copy 'web_*.rox' s3://bucket/web/
        roxxel format copy tokens.bin 'web_*.rox' --dtype uint16 --separator 50256
        roxxel format copy 'web_*.rox' web.npy
    """
    found = foreign.format or foreign_format(source)
    is_flat = Path(target).suffix in {".npy", ".bin"}
    if found is not None and is_flat:
        raise UsageError(
            f"argument TARGET: {target} is a flat file, which only a corpus of .rox "
            f"shards is copied to; copy {source} to shards first"
        )
    if found is not None:
        _copy_foreign(source, target, exist, foreign, found)
        return
    for option in given(foreign):
        raise UsageError(
            f"argument {option}: only for a source of another format; {source} is read "
            "as .rox shards, so name its --format, or leave this argument out"
        )
    if is_flat:
        _copy_flat(source, target, replaces=exist == "replace")
        return
    corpus = Roxxel(source)
    with Progress(f"copying to {target}") as progress:
        summary = corpus.copy_to(target, exist=exist, progress=progress)
    say(str(summary).replace("wrote", "copied"))


def _copy_foreign(
    source: str,
    target: str,
    exist: Literal["error", "replace"],
    options: Foreign,
    found: ForeignFormat,
) -> None:
    """Write the documents of a corpus of another format as shards."""
    separator, is_given = options.separator, True
    if isinstance(separator, Separator):
        separator, is_given = None, False
    if isinstance(separator, str):
        if options.tokenizer is None:
            raise UsageError(
                f"argument --separator: {separator!r} is not a token id; write a "
                "number, or pass the --tokenizer that has this token"
            )
        separator = load(options.tokenizer).token(separator)
    reader = open_foreign(
        source,
        found,
        dtype=options.dtype,
        offset=options.offset,
        separator=separator,
    )
    if found == "flat" and not is_given:
        raise UsageError(
            f"argument --separator: {source} does not record where documents "
            "end; pass the token that ends them, or none for one document"
        )
    if not reader.num_tokens:
        raise ValueError(f"{source}: holds no tokens; check the path")
    is_one = found == "flat" and separator is not None and reader.num_documents == 1
    # The last token of a single document may be the only separator.
    if is_one and reader.read([reader.num_tokens - 1], 1)[0, 0] != separator:
        note(
            f"{source}: the separator {separator} is nowhere in it, so all "
            f"{reader.num_tokens:,} tokens are one document"
        )
    write = CorpusWrite(
        target,
        Recipe(
            separator=separator,
            max_shard_bytes=options.max_shard_bytes,
            dtype=reader.dtype,
            tokenizer=options.tokenizer,
            metadata={"source": source},
            exist="replace" if exist == "replace" else "keep",
            inputs=f"{found} {reader.fingerprint}",
        ),
    )
    summary = write.run(reader.documents)
    if not summary.kept:
        say(str(summary).replace("wrote", "copied"))


def _copy_flat(source: str, target: str, *, replaces: bool) -> None:
    """Verify every block, and write all tokens into one file on a disk."""
    if url_of(target) is not None:
        raise ValueError(
            f"{target}: a flat file is written to a disk; name a path, and upload it"
        )
    output = Path(target)
    _check_free(output, replaces=replaces)
    with Roxxel(source, check="blocks") as corpus:
        with Output(output) as file:
            _write_tokens(corpus, file, header=output.suffix == ".npy")
            file.finish()
            _check_free(output, replaces=replaces)
            file.publish()
        say(
            f"{output}: {whole_count(corpus.num_tokens)} tokens ({corpus.dtype}), "
            f"{short_size(output.stat().st_size)}"
        )


def _check_free(output: Path, *, replaces: bool) -> None:
    if output.is_dir():
        raise IsADirectoryError(f"{output}: is a folder; name a file in it")
    if os.path.lexists(output) and not replaces:
        raise FileExistsError(
            f"{output}: exists already; add --exist replace, or write elsewhere"
        )


def _write_tokens(corpus: Roxxel, file: Output, *, header: bool) -> None:
    # numpy has no bfloat16, so the file has its bits as uint16.
    dtype = corpus.dtype if corpus.dtype.kind in "biuf" else np.dtype("<u2")
    if header:
        fields: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (corpus.num_tokens,),
        }
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, fields)
        file.write(head.getvalue())
    starts = range(0, corpus.num_tokens, _CHUNK)
    for start in starts:
        file.write(corpus.tokens[start : start + _CHUNK].view(np.uint8).data)


def clean(
    corpus: Annotated[str, "a file, a folder, a pattern, or a URL of these"],
    *,
    abandon: bool = False,
    compact: bool = False,
) -> None:
    """Remove files of interrupted writes, and merge small shards.

    Committed files stay, and so does a preparation that the same command would
    continue; --abandon removes it too. Each removed file is printed. While a write goes
    on, nothing is removed; in a bucket, which has no locks, nothing younger than a
    week.

    Args:
        corpus: The corpus.
        abandon: Also give up a preparation that is not committed, with its plan and
            shards, and shards whose manifest was lost or never committed.
        compact: Also merge the small shards of many appends, into shards of at most
            1 GiB. Tokens, documents, columns and versions stay the same, so a run that
            began with any version resumes. Every block is verified, and the merged
            files are deleted after the commit. A program that has the corpus open may
            stop, with the error that a file is missing; start it again.

    Example:
        roxxel format clean 'web_*.rox'
        roxxel format clean 'web_*.rox' --compact
    """
    removed = Roxxel(corpus).remove_leftovers(abandon=abandon)
    for path in removed:
        say(f"removed {path}")
    if compact:
        _compact(corpus)
    elif not removed:
        more = "" if abandon else "; --abandon removes an open preparation too"
        say(f"{corpus}: nothing to remove{more}")


def _compact(corpus: str) -> None:
    with Progress(f"merging {corpus}") as progress:
        done = Roxxel(corpus).compact(progress=progress)
    if not done.num_merged:
        say(f"{corpus}: no small shards follow each other, nothing to merge")
        return
    say(
        f"{corpus}: merged {done.num_merged:,} shards into "
        f"{done.num_written:,} ({short_size(done.num_bytes)}); the corpus has "
        f"{counted(done.num_shards, 'shard')} now, and its "
        f"{counted(done.num_versions, 'version')} "
        f"stay{'s' * (done.num_versions == 1)} readable"
    )
