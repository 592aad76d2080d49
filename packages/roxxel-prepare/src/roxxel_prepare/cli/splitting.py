"""Hold out documents of a corpus: `write --split` with a corpus as input."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from roxxel_format import Roxxel
from roxxel_format.writing import CorpusFiles, CorpusWrite, Recipe, Side
from roxxel_store.screen import say

from roxxel_prepare._plan.side import path_beside
from roxxel_prepare.cli.values import shares_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt


def split(options: argparse.Namespace) -> int:
    """Write a share of the documents into one corpus and the rest into another.

    A document's tokens alone decide its corpus, as in a write of files. So equal
    documents are in the same corpus, and adding documents to the source does not move
    other documents.
    """
    name, share = options.split
    source = options.inputs[0]
    outputs = options.corpus, path_beside(options.corpus, name)
    # Resolve both paths first: a write may change which corpus a folder's path names.
    sharded = options.max_shard_bytes is not None or options.exist == "append"
    files = [CorpusFiles(each, sharded=sharded) for each in outputs]
    with Roxxel(source) as corpus:
        _check_apart(corpus, outputs, files)
        _check_dense(corpus, source)
        _check_columns(corpus, source)
        sides = [Side(name, share, is_held_out) for is_held_out in (False, True)]

        def chosen(side: Side) -> Iterator[npt.NDArray[Any]]:
            return (each for each in corpus.documents if side.has(each))

        # Check both outputs before the first write, because no corpus can be empty.
        for output, side in zip(outputs, sides, strict=True):
            if next(chosen(side), None) is None:
                raise ValueError(
                    f"{output}: none of {corpus.num_documents} documents would be in "
                    f"this corpus with share={share}; choose another share"
                )
        separator = corpus.documents.with_separator[0][corpus.documents[0].size :]
        not_copied = {"arguments", "created_by", "separator"}
        not_copied |= {"input_files", "skipped", "tokenizer_file"}
        of_source = corpus.tokenizer is not None
        writes = [
            CorpusWrite(
                each.filepath,
                Recipe(
                    separator=separator.tobytes() or None,
                    block_size=corpus.block_size,
                    max_shard_bytes=options.max_shard_bytes,
                    dtype=corpus.dtype_name,
                    metadata={
                        key: value
                        for key, value in corpus.metadata.items()
                        if key not in not_copied
                    },
                    exist=options.exist,
                    side=side,
                    inputs=corpus.fingerprint,
                    tokenizer_record=corpus.metadata.get("tokenizer"),
                ),
                tokenizer_files=corpus.tokenizer_files if of_source else None,
            )
            for each, side in zip(files, sides, strict=True)
        ]
        for write in writes:  # An append that is refused later leaves half a split.
            write.check_append()
        summaries = [
            write.run(chosen(side), is_encoded=True)
            for write, side in zip(writes, sides, strict=True)
        ]
    for output, summary in zip(outputs, summaries, strict=True):
        if not summary.kept:
            say(f"{output}: {summary}")
    kept, held_out = summaries
    if not (kept.kept and held_out.kept):
        say(shares_line([(held_out, kept)]))
    return 0


def _check_columns(corpus: Roxxel, source: str) -> None:
    columns = sorted({*corpus.columns, *corpus.partial_columns})
    if columns:
        raise ValueError(
            f"{source}: has columns ({', '.join(columns)}), which a split "
            "of a corpus does not copy; pass --split when you write the files"
        )


def _check_dense(corpus: Roxxel, source: str) -> None:
    """Raise an error if the corpus is packed: it may hold parts of documents."""
    if corpus.unit is not None:
        raise ValueError(
            f"{source}: is packed in bins of {corpus.unit} tokens, and a split "
            "would hold out parts of documents; pass --split beside --pack when you "
            "write the files"
        )


def _check_apart(
    corpus: Roxxel, outputs: Sequence[str], files: Sequence[CorpusFiles]
) -> None:
    """Check that no write to an output can change the source."""
    paths = corpus.filepath
    paths = (paths,) if isinstance(paths, str) else paths
    # A split reads the shards and the manifests of the source. `CorpusFiles` knows no
    # single file in a bucket, so `has` looks for the shards too.
    read: list[CorpusFiles] = []
    for path in (*corpus.paths, *paths):
        with contextlib.suppress(ValueError):  # No corpus can be written to this path.
            read.append(CorpusFiles(path))
    for output, mine in zip(outputs, files, strict=True):
        if any(map(mine.has, corpus.paths)) or any(map(mine.shares_with, read)):
            raise ValueError(
                f"{output}: a write could delete files of {', '.join(paths)}, the "
                "source of the split; use another path"
            )
