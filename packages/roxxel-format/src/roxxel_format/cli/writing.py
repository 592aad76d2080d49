"""Commands that write: copy, compact, adopt, repair and clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.amounts import short_size
from roxxel_store.command import Progress
from roxxel_store.screen import note, say

from roxxel_format._write.driver import CorpusWrite
from roxxel_format._write.recipe import Recipe, Separator
from roxxel_format._write.rescue import repair_shard
from roxxel_format._write.tokenizers import load
from roxxel_format.corpus import Roxxel
from roxxel_format.foreign import foreign_format, open_foreign

if TYPE_CHECKING:
    import argparse


def copy(options: argparse.Namespace) -> int:
    """Copy a corpus to another folder or bucket."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("dtype", "offset", "tokenizer", "max_shard_bytes")
        if getattr(options, name) is not None
    ]
    if options.separator is not Separator.OF_TOKENIZER:
        given.append("--separator")
    found = options.format or foreign_format(options.source)
    if found is not None:
        return _copy_foreign(options, found)
    if given:
        options.usage_error(
            f"argument {given[0]}: only for a source of another format; "
            f"{options.source} is read as .rox shards, so name its --format, or leave "
            "this argument out"
        )
    corpus, target = Roxxel(options.source), options.target
    with Progress(f"copying to {target}") as progress:
        summary = corpus.copy_to(target, exist=options.exist, progress=progress)
    say(str(summary).replace("wrote", "copied"))
    return 0


def _copy_foreign(options: argparse.Namespace, found: str) -> int:
    """Write the documents of a corpus of another format as shards."""
    separator, is_given = options.separator, True
    if separator is Separator.OF_TOKENIZER:
        separator, is_given = None, False
    if isinstance(separator, str):
        if options.tokenizer is None:
            options.usage_error(
                f"argument --separator: {separator!r} is not a token id; write a "
                "number, or pass the --tokenizer that has this token"
            )
        separator = load(options.tokenizer).token(separator)
    reader = open_foreign(
        options.source,
        found,
        dtype=options.dtype,
        offset=options.offset,
        separator=separator,
    )
    if found == "flat" and not is_given:
        options.usage_error(
            f"argument --separator: {options.source} does not record where documents "
            "end; pass the token that ends them, or none for one document"
        )
    if not reader.num_tokens:
        raise ValueError(f"{options.source}: holds no tokens; check the path")
    is_one = found == "flat" and separator is not None and reader.num_documents == 1
    # The last token of a single document may be the only separator.
    if is_one and reader.read([reader.num_tokens - 1], 1)[0, 0] != separator:
        note(
            f"{options.source}: the separator {separator} is nowhere in it, so all "
            f"{reader.num_tokens:,} tokens are one document"
        )
    write = CorpusWrite(
        options.target,
        Recipe(
            separator=separator,
            max_shard_bytes=options.max_shard_bytes,
            dtype=reader.dtype,
            tokenizer=options.tokenizer,
            metadata={"source": options.source},
            exist="replace" if options.exist == "replace" else "keep",
            inputs=f"{found} {reader.fingerprint}",
        ),
    )
    summary = write.run(reader.documents)
    if not summary.kept:
        say(str(summary).replace("wrote", "copied"))
    return 0


def clean(options: argparse.Namespace) -> int:
    """Remove files of interrupted writes."""
    removed = Roxxel(options.corpus).remove_leftovers(abandon=options.abandon)
    for path in removed:
        say(f"removed {path}")
    if not removed:
        say(f"{options.corpus}: nothing to remove")
    return 0


def compact(options: argparse.Namespace) -> int:
    """Merge the small shards of a corpus."""
    with Progress(f"merging {options.corpus}") as progress:
        done = Roxxel(options.corpus).compact(
            max_shard_bytes=options.max_shard_bytes, progress=progress
        )
    if not done.num_merged:
        say(f"{options.corpus}: no small shards follow each other, nothing to merge")
        return 0
    versions = f"{done.num_versions:,} version{'s' * (done.num_versions != 1)}"
    say(
        f"{options.corpus}: merged {done.num_merged:,} shards into "
        f"{done.num_written:,} ({short_size(done.num_bytes)}); the corpus has "
        f"{done.num_shards:,} shard{'s' * (done.num_shards != 1)} now, and "
        f"its {versions} stay{'s' * (done.num_versions == 1)} readable"
    )
    return 0


def adopt(options: argparse.Namespace) -> int:
    """Verify shards without a manifest, and make them a corpus."""
    with Progress(f"verifying {options.corpus}") as progress:
        report = Roxxel(options.corpus).adopt(progress=progress)
    shards = f"{report.num_shards:,} shard{'s' * (report.num_shards != 1)}"
    say(
        f"{options.corpus}: adopted {shards}, {short_size(report.num_bytes)}, all sound"
    )
    return 0


def repair(options: argparse.Namespace) -> int:
    """Replace a damaged shard by a copy of it."""
    num_bytes = repair_shard(options.shard, options.copy)
    if num_bytes is None:
        say(f"{options.shard}: all checksums match, so nothing was changed")
    else:
        say(f"{options.shard}: replaced, {short_size(num_bytes)}, all checksums match")
    return 0
