"""Commands that write: write, split and clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_format._spec.dtypes import stored_name
from roxxel_format._write.options import WriteOptions
from roxxel_format.cli.values import progress
from roxxel_format.corpus import Roxxel
from roxxel_format.prepare.runner import Inputs, prepare
from roxxel_format.prepare.split import split

if TYPE_CHECKING:
    import argparse


def write(options: argparse.Namespace) -> int:
    """Write the documents of files into a corpus."""
    summary = prepare(
        options.corpus,
        Inputs(tuple(options.inputs), options.format, options.field),
        WriteOptions(
            separator=options.separator,
            block_size=options.block_size,
            max_shard_bytes=options.max_shard_bytes,
            dtype=options.dtype and stored_name(options.dtype),
            vocab_size=options.vocab_size,
            tokenizer=options.tokenizer,
        ),
        options.exist,
        workers=options.workers,
        progress=progress("units"),
    )
    if not summary.kept:
        print(summary)
    return 0


def split_documents(options: argparse.Namespace) -> int:
    """Write a share of the documents into one corpus and the rest into another."""
    with Roxxel(options.corpus) as corpus:
        summaries = split(
            corpus,
            options.kept,
            options.held_out,
            options.share,
            salt=options.salt,
            max_shard_bytes=options.max_shard_bytes,
            exist=options.exist,
        )
    for path, summary in zip((options.kept, options.held_out), summaries, strict=True):
        if not summary.kept:
            print(f"{path}: {summary}")
    return 0


def clean(options: argparse.Namespace) -> int:
    """Remove what interrupted writes left."""
    removed = Roxxel(options.corpus).remove_leftovers()
    for path in removed:
        print(f"removed {path}")
    if not removed:
        print(f"{options.corpus}: nothing to remove")
    return 0
