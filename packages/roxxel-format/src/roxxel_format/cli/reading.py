"""Commands that read: info, verify, cat and export."""

from __future__ import annotations

import io
import json
import os
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.amounts import short_count, short_size
from roxxel_store.command import FOUND, Progress, terminal_width
from roxxel_store.output import Output
from roxxel_store.screen import note, printable, put, say

from roxxel_format._read.opening import open_corpus
from roxxel_format._spec.input_totals import num_joined
from roxxel_format._store.corpus_name import owners_of
from roxxel_format.corpus import Roxxel
from roxxel_format.naming import documents_at, named
from roxxel_format.texts import text_codec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._spec.input_totals import InputTotals

_CHUNK = 1 << 20
_MOST_INPUTS = 10
"""Maximum number of input files that `info` lists one by one."""


_SHORT_FROM = 10_000
"""Smaller counts are printed only in full."""

_MOST_LETTERS = 160
"""Maximum number of characters that `info` prints for one fact."""


def info(options: argparse.Namespace) -> int:
    """Print what a corpus holds."""
    paths = _paths(options)
    with Roxxel(paths) as corpus:
        contents = open_corpus(corpus.filepath, corpus.fingerprint)
        facts: dict[str, Any] = {
            "shards": corpus.num_shards,
            "tokens": corpus.num_tokens,
            "documents": corpus.num_documents,
            **_bin_facts(corpus),
            "dtype": corpus.dtype_name,
            "token_range": corpus.token_range_seen,
            "block_size": corpus.block_size,
            "bytes": sum(contents.shards.num_bytes),
            "fingerprint": corpus.fingerprint,
            "tokenizer": corpus.tokenizer,
            "metadata": corpus.metadata,
        }
        facts["metadata"].pop("input_files", None)  # Lists only one unit's inputs.
        tables = _manifest_tables(contents)
        lengths = None if options.no_lengths else corpus.document_lengths()
        inputs = [] if options.no_lengths else corpus.input_totals()
    if options.json:
        if lengths is not None:
            facts["lengths"] = lengths.to_dict()
            facts["inputs"] = [asdict(each) for each in inputs]
            facts["bytes_per_token"] = _bytes_per_token(inputs)
        say(json.dumps(facts | tables))
        return 0
    for name, text in _facts_for_people(facts):
        say(f"{name:12} {text}")
    for number, (name, value) in enumerate(facts["metadata"].items()):
        label = "" if number else "metadata"
        say(f"{label:12} {printable(name)} {_shown(value)}")
    for name, rows in _tables_for_people(tables).items():
        for number, text in enumerate(rows):
            say(f"{'' if number else name:12} {printable(text)}")
    if lengths is not None:
        say(
            f"{'lengths':12} {lengths.least:,} to {lengths.greatest:,} tokens, "
            f"{lengths.mean:,.1f} on average"
        )
        shares = (f"{each} % {at:,}" for each, at in lengths.percentiles.items())
        say(f"{'percentiles':12} {', '.join(shares)}")
        say(f"{'tokens':>24} {'documents':>12}")
        for line in lengths.lines():
            say(line)
    num_tokens = facts["tokens"] - facts.get("padding", 0)
    for line in _input_lines(inputs, num_tokens):
        say(line)
    return 0


def _bin_facts(corpus: Roxxel) -> dict[str, int]:
    """Return what is known about the bins of a packed corpus."""
    if corpus.unit is None:
        return {}
    return {
        "bins": corpus.num_tokens // corpus.unit,
        "unit": corpus.unit,
        "cut": corpus.num_cut,
        "padding": corpus.num_padding,
    }


def _facts_for_people(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each fact, with units."""
    for name in ("tokens", "documents", "shards", "bins", "unit", "cut", "padding"):
        if name in facts:
            yield name, _count(facts[name])
    yield "size", short_size(facts["bytes"])
    seen = facts["token_range"]
    ids = "" if seen is None else f", ids {seen[0]:,} to {seen[1]:,}"
    yield "dtype", f"{facts['dtype']}{ids}"
    yield "blocks", f"{facts['block_size']:,} bytes, each with a checksum"
    yield "tokenizer", printable(facts["tokenizer"] or "not recorded")
    yield "fingerprint", facts["fingerprint"]


def _count(number: int) -> str:
    """Return a count in short and in full: `11.94 M (11,936,011)`."""
    return (
        f"{number:,}" if number < _SHORT_FROM else f"{short_count(number)} ({number:,})"
    )


def _shown(value: Any) -> str:
    """Return a value on one line, without characters that control the terminal."""
    text = _words(value)
    more = len(text) - _MOST_LETTERS
    if more > 0:
        text = f"{text[:_MOST_LETTERS]} ... ({more:,} more characters, see --json)"
    return printable(text)


def _words(value: Any) -> str:
    """Return a value of JSON as a person would write it."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return ", ".join(f"{name} {_words(inner)}" for name, inner in entries)
    if isinstance(value, list):
        return ", ".join(map(_words, cast("list[Any]", value))) or "none"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count else str(value)


def _bytes_per_token(inputs: Sequence[InputTotals]) -> float | None:
    """Return bytes of text for each token; None without texts."""
    texts = [each for each in inputs if each.text_bytes is not None]
    num_tokens = sum(each.num_tokens for each in texts)
    if not num_tokens:
        return None
    return sum(each.text_bytes or 0 for each in texts) / num_tokens


def _input_lines(inputs: Sequence[InputTotals], num_tokens: int) -> Iterator[str]:
    """Yield a summary of the input files, and the files with the most tokens."""
    if not inputs:
        return
    single = [each for each in inputs if num_joined(each.name) is None]
    others = [each for each in inputs if num_joined(each.name) is not None]
    num_others = sum(num_joined(each.name) or 0 for each in others)
    num_files = len(single) + num_others
    files = f"{num_files} input file{'s' * (num_files != 1)}"
    yield f"{'inputs':12} {files}{_per_token(inputs)}"
    shown = sorted(single, key=lambda each: -each.num_tokens)
    for each in shown[:_MOST_INPUTS]:
        share = each.num_tokens / max(1, num_tokens)
        label = f"{printable(each.name):>24} {each.num_tokens:>12,} tokens, {share:.1%}"
        yield label + _per_token([each])
    others += shown[_MOST_INPUTS:]
    num_others += len(shown[_MOST_INPUTS:])
    if others:
        count = sum(each.num_tokens for each in others)
        share = count / max(1, num_tokens)
        label = f"{f'and {num_others} more':>24} {count:>12,} tokens, {share:.1%}"
        yield label + _per_token(others)
    unknown = num_tokens - sum(each.num_tokens for each in inputs)
    if unknown:
        yield f"{'not recorded':>24} {unknown:>12,} tokens, {unknown / num_tokens:.1%}"


def _per_token(inputs: Sequence[InputTotals]) -> str:
    ratio = _bytes_per_token(inputs)
    return "" if ratio is None else f", {ratio:.2f} bytes of text per token"


def _paths(options: argparse.Namespace) -> str | list[str]:
    """Return a single path as `str`, because for a list `Roxxel` ignores manifests.

    If the files belong to two corpora, an unquoted pattern probably matched a held-out
    corpus too, so a note says that they are read as one.
    """
    paths: list[str] = options.corpus
    owners = owners_of(paths) if len(paths) > 1 else []
    if len(owners) > 1:
        note(
            f"note: these files are shards of {' and '.join(map(repr, owners))}, read "
            "as one corpus here; for one of them quote the pattern, because the shell "
            "expands it"
        )
    return paths[0] if len(paths) == 1 else paths


def _manifest_tables(contents: Contents) -> dict[str, list[dict[str, Any]]]:
    """Return the versions of a corpus, and the columns of the open version."""
    return {
        "versions": [
            {
                "fingerprint": version.fingerprint,
                "tokens": version.num_tokens,
                "documents": version.num_documents,
            }
            | ({} if version.encoder is None else {"encoded_by": version.encoder})
            for version in contents.manifest.versions
        ],
        "columns": [
            {
                "name": name,
                "per": column.per,
                "dtype": column.dtype,
                "shards": sum(each is not None for each in column.names),
                "missing_shards": sum(each is None for each in column.names),
            }
            for name, column in contents.columns.items()
        ],
    }


def _tables_for_people(
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, list[str]]:
    found = {
        "versions": [
            f"{row['fingerprint']}, {_counted(row['tokens'], 'token')} in "
            + _counted(row["documents"], "document")
            + (f", encoded by {row['encoded_by']}" if "encoded_by" in row else "")
            for row in tables.get("versions", ())
        ],
        "columns": [],
    }
    for row in tables.get("columns", ()):
        lacking = row["missing_shards"]
        note = f", missing in {lacking:,}" if lacking else ""
        found["columns"].append(
            f"{row['name']}: {row['dtype']} for each {row['per']}, in "
            f"{_counted(row['shards'], 'shard')}{note}"
        )
    return found


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def verify(options: argparse.Namespace) -> int:
    """Compare every block of a corpus with its checksum."""
    shown = Progress(f"verifying {' '.join(options.corpus)}")
    with Roxxel(_paths(options)) as corpus, shown as progress:
        report = corpus.verify(progress=progress)
    for error in report.errors:
        note(f"{options.prog}: {error}")
    if not report.ok:
        return FOUND
    shards = f"{report.num_shards} shard{'s' * (report.num_shards != 1)}"
    say(f"{shards}, {short_size(report.num_bytes)}: all checksums match")
    return 0


def cat(options: argparse.Namespace) -> int:
    """Print documents or tokens, as text or as numbers."""
    with Roxxel(_paths(options), check="blocks") as corpus:
        decode = None if options.ids else _decoder(corpus, options)
        width = options.width or terminal_width()
        for number, part in _chosen(corpus, options):
            if options.names and number is not None:
                say(f"document {number}{named(corpus, number)}:")
            if decode is None:
                line = " ".join(map(str, part.tolist())).encode()
            else:
                line = decode(part)
            put(_wrapped(line, width) + b"\n")
    return 0


def _wrapped(text: bytes, width: int | None) -> bytes:
    """Break lines between words; a word wider than a line stays whole."""
    if width is None:
        return text
    lines = text.decode(errors="surrogateescape").split("\n")
    broken = (
        textwrap.wrap(
            line,
            width,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    # For an empty line, `wrap` returns no line.
    wrapped = "\n".join("\n".join(parts) for parts in broken)
    return wrapped.encode(errors="surrogateescape")


def _decoder(
    corpus: Roxxel, options: argparse.Namespace
) -> Callable[[Tokens], bytes] | None:
    """Return a function that decodes tokens; None if the corpus has no tokenizer.

    If loading the recorded tokenizer fails, print the reason and return None.
    """
    try:
        codec = text_codec(corpus, options.tokenizer)
    except (OSError, ValueError, TypeError, ImportError) as error:
        if options.tokenizer is not None:
            raise
        note(
            f"{options.prog}: the recorded tokenizer {corpus.tokenizer} cannot be "
            f"loaded ({error}); pass --tokenizer to see text"
        )
        return None
    return None if codec is None else codec.decode


def _chosen(
    corpus: Roxxel, options: argparse.Namespace
) -> Iterator[tuple[int | None, Tokens]]:
    """Yield pairs of document number and tokens; the number of a range is None."""
    if options.tokens is not None:
        start, stop = options.tokens
        if stop > corpus.num_tokens:
            raise IndexError(
                f"{corpus.filepath}: tokens {start}:{stop} are out of range; there are "
                f"{corpus.num_tokens:,}"
            )
        yield None, corpus.tokens[start:stop]
        return
    numbers: Iterable[int] = range(corpus.num_documents)
    if options.document:
        numbers = [n for text in options.document for n in documents_at(corpus, text)]
    for number in numbers:
        yield number, corpus.documents[number]


def export(options: argparse.Namespace) -> int:
    """Verify every block, and write all tokens into one flat file."""
    output = Path(options.output)
    if output.suffix not in {".npy", ".bin"}:
        raise ValueError(f"{output}: must end in .npy or .bin")
    _check_free(output, options)
    with Roxxel(_paths(options), check="blocks") as corpus:
        _check_apart(output, corpus)
        with Output(output) as file:
            _write_flat(corpus, file, header=output.suffix == ".npy")
            file.finish()
            _check_free(output, options)
            file.publish()
        say(
            f"{output}: {_count(corpus.num_tokens)} tokens ({corpus.dtype}), "
            f"{short_size(output.stat().st_size)}"
        )
    return 0


def _check_free(output: Path, options: argparse.Namespace) -> None:
    if output.is_dir():
        raise IsADirectoryError(f"{output}: is a folder; name a file in it")
    if os.path.lexists(output) and not options.force:
        raise FileExistsError(
            f"{output}: exists already; add --force to replace it, or write elsewhere"
        )


def _check_apart(output: Path, corpus: Roxxel) -> None:
    """Check that the output is not a file of any version of the corpus."""
    if not output.exists():
        return
    contents = open_corpus(corpus.filepath, corpus.fingerprint)
    paths = [Path(path) for path in contents.paths]
    others = contents.manifest.file_names() - {*contents.shards.names}
    paths += [paths[0].parent / name for name in others]
    for path in paths:
        if path.exists() and output.samefile(path):
            raise ValueError(
                f"{output}: the export would replace {path}, a file of the corpus; "
                "write elsewhere"
            )


def _write_flat(corpus: Roxxel, file: Output, *, header: bool) -> None:
    # numpy has no bfloat16, so the export stores its bits as uint16.
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
