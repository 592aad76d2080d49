"""Commands that write: plan, write, commit, copy, split and clean."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from roxxel_format._prepare.committing import PartSummary, commit_units
from roxxel_format._prepare.listing import find_inputs
from roxxel_format._prepare.old_shards import with_old_separator
from roxxel_format._prepare.preparation import prepare
from roxxel_format._prepare.ray_runner import RayRunner
from roxxel_format._prepare.runners import ProcessRunner
from roxxel_format._prepare.units import units_of
from roxxel_format._read.contents import resolved_to_read
from roxxel_format._spec.dtypes import stored_name
from roxxel_format._store.corpus_name import (
    CorpusName,
    absolute,
    corpus_name,
    share_files,
)
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.fields import Fields
from roxxel_format._write.options import WriteOptions
from roxxel_format._write.repair import repair_shard
from roxxel_format._write.side import Side, held_out_path
from roxxel_format._write.target import name_to_write
from roxxel_format.cli.values import progress, status_line
from roxxel_format.corpus import Roxxel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from roxxel_format._prepare.runners import Runner
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.input_record import Inputs

_MAX_SALT = 64


def write(options: argparse.Namespace) -> int:
    """Write the documents of files into a corpus."""
    _check_usage(options)
    inputs = _inputs(options)
    write_options = WriteOptions(
        separator=options.separator,
        block_size=options.block_size,
        max_shard_bytes=options.max_shard_bytes,
        dtype=options.dtype and stored_name(options.dtype),
        vocab_size=options.vocab_size,
        tokenizer=options.tokenizer,
        special_tokens=options.special_tokens,
        shuffle=options.shuffle,
        skip_bad=options.skip_bad,
        fields=Fields(
            inputs.field, options.prompt, options.completion, options.id, options.path
        ),
    )
    write_options, line_of = with_old_separator(write_options, inputs)
    how: dict[str, Any] = {
        "runner": _runner(options),
        "part": options.part,
        "unit_bytes": options.unit_bytes,
        "line_of": line_of,
        "progress": status_line(),
    }
    if options.split is None:
        written = [prepare(options.corpus, inputs, write_options, options.exist, **how)]
    else:
        if inputs.stream is not None:
            raise ValueError(
                f"{inputs.stream}: cannot be read twice, as --split needs; pass files"
            )
        if options.exist == "append":
            raise ValueError(
                f"{options.corpus}: a split cannot append to two corpora as one; write "
                "new corpora, or append without --split"
            )
        # Held out first, so that a corpus never exists without the other side.
        paths = held_out_path(options.corpus, options.split[0]), options.corpus
        written = [
            prepare(
                path,
                inputs,
                replace(
                    write_options, side=Side(*options.split, is_held_out=is_held_out)
                ),
                options.exist,
                **how,
            )
            for path, is_held_out in zip(paths, (True, False), strict=True)
        ]
    for summary in written:
        if isinstance(summary, PartSummary) or not summary.kept:
            print(summary)
    return 0


def _check_usage(options: argparse.Namespace) -> None:
    """Exit with a usage error for arguments that do not belong together."""
    usage_error: Callable[[str], NoReturn] = options.usage_error
    if options.tokenizer is None:
        if isinstance(options.separator, str):
            usage_error(
                f"argument --separator: {options.separator!r} is not a token id; write "
                "a number, use --separator-bytes, or pass the --tokenizer that has "
                "this token"
            )
        if options.special_tokens:
            usage_error("argument --special-tokens: needs --tokenizer")
    if (options.prompt is None) != (options.completion is None):
        usage_error("arguments --prompt and --completion: pass both, or neither")
    if options.prompt is not None and options.field is not None:
        usage_error("argument --field: not allowed with --prompt and --completion")


def commit(options: argparse.Namespace) -> int:
    """Commit a preparation whose parts are done."""
    for summary in commit_units(options.corpus):
        print(summary)
    return 0


def plan(options: argparse.Namespace) -> int:
    """Print the units of a preparation, without writing anything."""
    units = units_of(_inputs(options), options.unit_bytes)
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
        print(f"{number:>6} {unit.num_bytes:>14}  {unit}")
    total = sum(unit.num_bytes for unit in units)
    print(f"{len(units)} units, {total} bytes, {options.corpus}")
    return 0


def _inputs(options: argparse.Namespace) -> Inputs:
    field = options.field or "text"
    return find_inputs(options.inputs, options.format, field)


def _runner(options: argparse.Namespace) -> Runner:
    if options.ray is None:
        return ProcessRunner(options.workers)
    return RayRunner(options.ray or None)


def copy(options: argparse.Namespace) -> int:
    """Copy a corpus to another folder or bucket."""
    corpus, target = Roxxel(options.source), options.target
    show = progress("bytes")
    summary = corpus.copy_to(target, exist=options.exist, progress=show)
    print(str(summary).replace("wrote", "copied"))
    return 0


def split(options: argparse.Namespace) -> int:
    """Write a share of the documents into one corpus and the rest into another.

    A document's content alone decides its corpus. So equal documents are in the same
    corpus, and adding documents to the source does not move other documents.
    """
    share, salt = options.share, options.salt.encode()
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    outputs: tuple[str, str] = options.kept, options.held_out
    # Resolve both paths first: a write may change which corpus a folder's path names.
    sharded = options.max_shard_bytes is not None or options.exist == "append"
    names = [name_to_write(absolute(each), sharded=sharded) for each in outputs]
    with Roxxel(options.corpus) as corpus:
        _check_apart(corpus, outputs, names)
        _check_columns(corpus, options)
        if len(salt) > _MAX_SALT:
            raise ValueError(f"salt has {len(salt)} bytes, more than {_MAX_SALT}")

        def chosen(*, held_out: bool) -> Iterator[Tokens]:
            for document in corpus.documents:
                digest = blake2b(document.tobytes(), digest_size=8, key=salt).digest()
                is_held_out = int.from_bytes(digest, "little") < int(share * 2**64)
                if is_held_out == held_out:
                    yield document

        # Check both outputs before the first write, because no corpus can be empty.
        for output, held_out in zip(outputs, (False, True), strict=True):
            if next(chosen(held_out=held_out), None) is None:
                raise ValueError(
                    f"{output}: none of {corpus.num_documents} documents would be in "
                    f"this corpus with share={share}; choose another share or salt"
                )
        separator = corpus.documents.with_separator[0][corpus.documents[0].size :]
        not_copied = {"write", "arguments", "created_by", "separator"}
        identity = f"{corpus.fingerprint} {share} {options.salt!r}"
        summaries = [
            write_corpus(
                name.pattern,
                chosen(held_out=held_out),
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
                    inputs=f"{identity} {held_out}",
                ),
                options.exist,
            )
            for name, held_out in zip(names, (False, True), strict=True)
        ]
    for output, summary in zip(outputs, summaries, strict=True):
        if not summary.kept:
            print(f"{output}: {summary}")
    return 0


def _check_columns(corpus: Roxxel, options: argparse.Namespace) -> None:
    """Raise unless a split loses no columns, or may lose them."""
    columns = sorted({*corpus.columns, *corpus.partial_columns})
    if columns and not options.drop_columns:
        raise ValueError(
            f"{options.corpus}: has columns ({', '.join(columns)}), which a split "
            "does not copy; hold documents out with `roxxel-format write --split`, or "
            "add --drop-columns"
        )


def _check_apart(
    corpus: Roxxel, outputs: Sequence[str], names: Sequence[CorpusName]
) -> None:
    """Check that no write to an output can change the source or the other output."""
    paths = corpus.filepath
    paths = (paths,) if isinstance(paths, str) else paths
    # A split reads the shards and the manifests of the source.
    shards = map(Path, corpus.paths)
    read = [CorpusName(shard.parent, shard.name, "", None) for shard in shards]
    for path in paths:
        with contextlib.suppress(ValueError):  # No corpus can be written to this path.
            read.append(corpus_name(resolved_to_read(path)))
    source = f"{', '.join(paths)}, the source of the split"
    pairs = [
        (output, name, other, source)
        for output, name in zip(outputs, names, strict=True)
        for other in read
    ]
    kept = f"{outputs[0]}, the corpus of the kept documents"
    for output, name, other, what in [*pairs, (outputs[1], *names, kept)]:
        if share_files(name, other):
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


def repair(options: argparse.Namespace) -> int:
    """Replace the damaged blocks of a shard by those of a copy."""
    done = repair_shard(options.shard, options.copy)
    for name in done.replaced:
        print(f"replaced {name}")
    if not done.replaced:
        print(f"{options.shard}: all checksums match, so nothing was changed")
        return 0
    print(f"{options.shard}: {done.num_bytes} bytes, all checksums match")
    return 0
