"""The command split: hold documents of a corpus out."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from roxxel_format import Roxxel
from roxxel_format.writing import CorpusFiles, CorpusWrite, WriteOptions
from roxxel_store import roxxel_command
from roxxel_store.screen import say

from roxxel_prepare._plan.side import Side

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

_MAX_SALT = 64


def split(options: argparse.Namespace) -> int:
    """Write a share of the documents into one corpus and the rest into another.

    A document's tokens alone decide its corpus, by the rule of `write --split`. So
    equal documents are in the same corpus, and adding documents to the source does not
    move other documents.
    """
    share, salt = options.share, options.salt.encode()
    outputs: tuple[str, str] = options.kept, options.held_out
    # Resolve both paths first: a write may change which corpus a folder's path names.
    sharded = options.max_shard_bytes is not None or options.exist == "append"
    files = [CorpusFiles(each, sharded=sharded) for each in outputs]
    with Roxxel(options.corpus) as corpus:
        _check_apart(corpus, outputs, files)
        _check_columns(corpus, options)
        _check_dense(corpus, options)
        if len(salt) > _MAX_SALT:
            raise ValueError(f"salt has {len(salt)} bytes, more than {_MAX_SALT}")

        side = Side("", share, is_held_out=True, salt=salt)

        def chosen(*, held_out: bool) -> Iterator[npt.NDArray[Any]]:
            for document in corpus.documents:
                if side.has(document) == held_out:
                    yield document

        # Check both outputs before the first write, because no corpus can be empty.
        for output, held_out in zip(outputs, (False, True), strict=True):
            if next(chosen(held_out=held_out), None) is None:
                raise ValueError(
                    f"{output}: none of {corpus.num_documents} documents would be in "
                    f"this corpus with share={share}; choose another share or salt"
                )
        separator = corpus.documents.with_separator[0][corpus.documents[0].size :]
        not_copied = {"arguments", "created_by", "separator"}
        not_copied |= {"input_files", "skipped", "tokenizer_file"}
        made_by = None
        if corpus.tokenizer is not None:
            made_by = corpus.metadata["tokenizer"], corpus.tokenizer_files
        summaries = [
            CorpusWrite(
                each.filepath,
                WriteOptions(
                    separator=separator.tobytes() or None,
                    block_size=corpus.block_size,
                    max_shard_bytes=options.max_shard_bytes,
                    dtype=corpus.dtype_name,
                    metadata={
                        key: value
                        for key, value in corpus.metadata.items()
                        if key not in not_copied
                    },
                    also={
                        "inputs": corpus.fingerprint,
                        "share": share,
                        "salt": options.salt,
                        "held_out": held_out,
                    },
                ),
                options.exist,
                made_by=made_by,
            ).run(chosen(held_out=held_out))
            for each, held_out in zip(files, (False, True), strict=True)
        ]
    for output, summary in zip(outputs, summaries, strict=True):
        if not summary.kept:
            say(f"{output}: {summary}")
    return 0


def _check_columns(corpus: Roxxel, options: argparse.Namespace) -> None:
    """Raise if a split would lose columns without `--drop-columns`."""
    columns = sorted({*corpus.columns, *corpus.partial_columns})
    if columns and not options.drop_columns:
        raise ValueError(
            f"{options.corpus}: has columns ({', '.join(columns)}), which a split "
            "does not copy; hold documents out with "
            f"`{roxxel_command('prepare write --split')}`, or add --drop-columns"
        )


def _check_dense(corpus: Roxxel, options: argparse.Namespace) -> None:
    """Raise if the corpus is packed: its documents may be parts of documents."""
    if corpus.unit is not None:
        raise ValueError(
            f"{options.corpus}: is packed in bins of {corpus.unit} tokens, and a split "
            "would hold out parts of documents; hold documents out with "
            f"`{roxxel_command('prepare write --split')}` beside --pack"
        )


def _check_apart(
    corpus: Roxxel, outputs: Sequence[str], files: Sequence[CorpusFiles]
) -> None:
    """Check that no write to an output can change the source or the other output."""
    paths = corpus.filepath
    paths = (paths,) if isinstance(paths, str) else paths
    # A split reads the shards and the manifests of the source. `CorpusFiles` knows no
    # single file in a bucket, so `has` looks for the shards too.
    read: list[CorpusFiles] = []
    for path in (*corpus.paths, *paths):
        with contextlib.suppress(ValueError):  # No corpus can be written to this path.
            read.append(CorpusFiles(path))
    source = f"{', '.join(paths)}, the source of the split"
    for output, mine in zip(outputs, files, strict=True):
        if any(map(mine.has, corpus.paths)) or any(map(mine.shares_with, read)):
            raise _shared(output, source)
    if files[1].shares_with(files[0]):
        raise _shared(outputs[1], f"{outputs[0]}, the corpus of the kept documents")


def _shared(output: str, what: str) -> ValueError:
    return ValueError(
        f"{output}: a write could delete files of {what}; use another path"
    )
