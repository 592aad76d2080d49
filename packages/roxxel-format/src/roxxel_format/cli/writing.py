"""Commands that write, other than write and commit: plan, copy, split and clean."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from roxxel_format._prepare.listing import check_fields, find_inputs
from roxxel_format._prepare.side import Side
from roxxel_format._prepare.units import units_of
from roxxel_format._write.options import WriteSummary
from roxxel_format._write.repair import repair_shard
from roxxel_format._write.tokenizers import load
from roxxel_format.cli.values import progress
from roxxel_format.corpus import Roxxel
from roxxel_format.foreign import foreign_format, open_foreign
from roxxel_format.writing import CorpusFiles, CorpusWrite, Separator, WriteOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from roxxel_format._spec.dtypes import Tokens

_MAX_SALT = 64


def plan(options: argparse.Namespace) -> int:
    """Print the units of a preparation, without writing anything."""
    inputs = find_inputs(
        options.inputs, options.format, options.field, outputs=[options.corpus]
    )
    check_fields(inputs, {"field": options.field})
    units = units_of(inputs, options.unit_bytes)
    if options.json:
        rows = [
            {
                "bytes": unit.num_bytes,
                "inputs": [
                    {"path": part.path, "span": part.span} for part in unit.parts
                ],
            }
            for unit in units
        ]
        print(json.dumps({"corpus": options.corpus, "units": rows}))
        return 0
    print(f"{'unit':>6} {'bytes':>14}  inputs")
    for number, unit in enumerate(units):
        print(f"{number:>6} {unit.num_bytes:>14,}  {unit}")
    total = sum(unit.num_bytes for unit in units)
    note = WriteSummary.left_out_note(inputs.left_out)
    print(f"{len(units):,} units, {total:,} bytes, {options.corpus}{note}")
    return 0


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
    show = progress("bytes")
    summary = corpus.copy_to(target, exist=options.exist, progress=show)
    print(str(summary).replace("wrote", "copied"))
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
    if found in {"flat", "roxxel02"} and not is_given:
        options.usage_error(
            f"argument --separator: {options.source} does not record where documents "
            "end; pass the token that ends them, or none for one document"
        )
    write = CorpusWrite(
        options.target,
        WriteOptions(
            separator=separator,
            max_shard_bytes=options.max_shard_bytes,
            dtype=reader.dtype,
            tokenizer=options.tokenizer,
            metadata={"source": options.source},
            also={"inputs": f"{found} {reader.fingerprint}"},
        ),
        "replace" if options.exist == "replace" else "keep",
    )
    summary = write.run(reader.documents)
    if not summary.kept:
        print(str(summary).replace("wrote", "copied"))
    return 0


def split(options: argparse.Namespace) -> int:
    """Write a share of the documents into one corpus and the rest into another.

    A document's tokens alone decide its corpus, by the rule of `write --split`. So
    equal documents are in the same corpus, and adding documents to the source does not
    move other documents.
    """
    share, salt = options.share, options.salt.encode()
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    outputs: tuple[str, str] = options.kept, options.held_out
    # Resolve both paths first: a write may change which corpus a folder's path names.
    sharded = options.max_shard_bytes is not None or options.exist == "append"
    files = [CorpusFiles(each, sharded=sharded) for each in outputs]
    with Roxxel(options.corpus) as corpus:
        _check_apart(corpus, outputs, files)
        _check_columns(corpus, options)
        if len(salt) > _MAX_SALT:
            raise ValueError(f"salt has {len(salt)} bytes, more than {_MAX_SALT}")

        side = Side("", share, is_held_out=True, salt=salt)

        def chosen(*, held_out: bool) -> Iterator[Tokens]:
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
        not_copied |= {"input_files", "skipped"}
        identity = f"{corpus.fingerprint} {share} {options.salt!r}"
        summaries = [
            CorpusWrite(
                each.name.pattern,
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
                    also={"inputs": f"{identity} {held_out}"},
                ),
                options.exist,
            ).run(chosen(held_out=held_out))
            for each, held_out in zip(files, (False, True), strict=True)
        ]
    for output, summary in zip(outputs, summaries, strict=True):
        if not summary.kept:
            print(f"{output}: {summary}")
    return 0


def _check_columns(corpus: Roxxel, options: argparse.Namespace) -> None:
    """Raise if a split would lose columns without `--drop-columns`."""
    columns = sorted({*corpus.columns, *corpus.partial_columns})
    if columns and not options.drop_columns:
        raise ValueError(
            f"{options.corpus}: has columns ({', '.join(columns)}), which a split "
            "does not copy; hold documents out with `roxxel-format write --split`, or "
            "add --drop-columns"
        )


def _check_apart(
    corpus: Roxxel, outputs: Sequence[str], files: Sequence[CorpusFiles]
) -> None:
    """Check that no write to an output can change the source or the other output."""
    paths = corpus.filepath
    paths = (paths,) if isinstance(paths, str) else paths
    # A split reads the shards and the manifests of the source.
    read = [CorpusFiles(shard) for shard in corpus.paths]
    for path in paths:
        with contextlib.suppress(ValueError):  # No corpus can be written to this path.
            read.append(CorpusFiles(path))
    source = f"{', '.join(paths)}, the source of the split"
    pairs = [
        (output, mine, other, source)
        for output, mine in zip(outputs, files, strict=True)
        for other in read
    ]
    kept = f"{outputs[0]}, the corpus of the kept documents"
    for output, mine, other, what in [*pairs, (outputs[1], *files, kept)]:
        if mine.shares_with(other):
            raise ValueError(
                f"{output}: a write could delete files of {what}; use another path"
            )


def clean(options: argparse.Namespace) -> int:
    """Remove files of interrupted writes."""
    removed = Roxxel(options.corpus).remove_leftovers(abandon=options.abandon)
    for path in removed:
        print(f"removed {path}")
    if not removed:
        print(f"{options.corpus}: nothing to remove")
    return 0


def adopt(options: argparse.Namespace) -> int:
    """Verify shards without a manifest, and make them a corpus."""
    report = Roxxel(options.corpus).adopt(progress=progress("bytes"))
    shards = f"{report.num_shards:,} shard{'s' * (report.num_shards != 1)}"
    print(f"{options.corpus}: adopted {shards}, {report.num_bytes:,} bytes, all sound")
    return 0


def repair(options: argparse.Namespace) -> int:
    """Replace the damaged blocks of a shard by those of a copy."""
    done = repair_shard(options.shard, options.copy)
    for name in done.replaced:
        print(f"replaced {name}")
    if not done.replaced:
        print(f"{options.shard}: all checksums match, so nothing was changed")
        return 0
    print(f"{options.shard}: {done.num_bytes:,} bytes, all checksums match")
    return 0
