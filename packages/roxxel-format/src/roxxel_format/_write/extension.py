"""Checks of a write, and the manifest that it commits, on disks and in buckets.

This module checks the arguments, and whether an existing corpus may be kept or
extended. It computes the manifest with the new shards. It does not access files.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roxxel_format._spec.layout import check_block_size
from roxxel_format._spec.manifest import Manifest, Version
from roxxel_format._spec.tables import ColumnTable
from roxxel_format._write.intake import separator_items
from roxxel_format._write.options import WriteSummary, difference
from roxxel_format._write.shard_writer import shard_size_bound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format._spec.tables import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import WriteOptions


def check_arguments(
    options: WriteOptions, name: CorpusName, exist: str, data: object
) -> None:
    """Check the arguments of a write before any file changes."""
    if exist not in ("keep", "replace", "append", "error"):
        raise ValueError(
            f'exist must be "keep", "replace", "append" or "error", got {exist!r}'
        )
    if isinstance(data, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", data)).__name__
        raise TypeError(
            f"data is one {kind}; pass an iterable of documents, such as [data]"
        )
    check_block_size(options.block_size)
    limit = options.max_shard_bytes
    if limit is not None:
        least = shard_size_bound(8, options.block_size) + 2 * options.block_size
        if limit < least:
            raise ValueError(
                f"max_shard_bytes={limit} is too small for one document; use at "
                f"least {least}"
            )
    if name.manifest is None and options.fields.columns:
        raise ValueError(
            f"{name.single}: a corpus of one file has no columns, such as "
            f"{next(iter(options.fields.columns))!r}; write the corpus to a pattern "
            f'such as "{name.prefix}_*.rox", or to a folder'
        )
    if name.manifest is None and options.may_make_several(exist):
        raise ValueError(
            f'{name.single}: is one file, but max_shard_bytes or exist="append" makes '
            f'shards such as "{name.prefix}_00000.rox"; delete the file first, or use '
            f'a pattern such as "{name.prefix}_*.rox"'
        )


def check_kept(
    manifest: Manifest,
    options: WriteOptions,
    arguments: dict[str, Any],
    what: str,
) -> str:
    """Check that a write with `exist="keep"` may keep a corpus.

    Returns a text for the user about what could not be compared, or an empty text.
    Raises FileExistsError if the corpus was made with other arguments.
    """
    inputs = None if isinstance(options.inputs, str) else options.inputs
    if inputs is not None and inputs.stream is not None:
        raise FileExistsError(
            f"{what}: the corpus exists already, and {inputs.stream} cannot "
            'be compared with its inputs; use exist="append" or exist="replace", or '
            "write elsewhere"
        )
    recorded = manifest.versions[-1].arguments
    limits = ""
    if inputs is not None and recorded.get("inputs") == inputs.older:
        arguments = arguments | {"inputs": inputs.older}
        limits = (
            "; its inputs were compared only by name, size and time, because the "
            "corpus does not record more"
        )
    if recorded != arguments:
        raise FileExistsError(
            f"{what}: {difference(recorded, arguments, inputs)}; use "
            'exist="replace" or exist="append", or write elsewhere'
        )
    return limits


def say_kept(
    what: str,
    kept: WriteSummary,
    limits: str,
    options: WriteOptions,
    data: object = None,
) -> None:
    """Say what a write with `exist="keep"` kept, and that it read no documents.

    Warns if `data`, as given to the write, is visibly other than what was kept; the
    warning names the line that called the caller's caller.
    """
    size = f"kept {kept.num_tokens:,} tokens of {what}"
    if options.inputs is not None:
        print_notice(f"{size}: the same command made them from these inputs{limits}")
        return
    said = f'{size}; the documents given were not read (exist="replace" writes them)'
    other = _other_data(data, kept, options)
    if other is None:
        print_notice(said)
    else:
        warnings.warn(f"{said}, although {other}", stacklevel=4)


def _other_data(data: object, kept: WriteSummary, options: WriteOptions) -> str | None:
    """Describe how documents in memory differ from those that were kept."""
    if not isinstance(data, Sequence):
        return None
    documents = cast("Sequence[object]", data)
    if len(documents) != kept.num_documents:
        return f"{len(documents):,} documents are given, not {kept.num_documents:,}"
    if options.tokenizer is not None or not all(
        isinstance(each, (str, bytes, list, np.ndarray)) for each in documents
    ):
        return None
    texts = (x.encode() if isinstance(x, str) else x for x in documents)
    separator = len(separator_items(options.separator, kept.dtype))
    given = sum(map(len, cast("Iterable[bytes]", texts))) + separator * len(documents)
    if given != kept.num_tokens:
        return f"{given:,} tokens are given"
    return None


def check_free(what: str, *, is_taken: bool) -> None:
    if is_taken:
        raise FileExistsError(
            f'{what}: the corpus exists already; use exist="keep", '
            'exist="replace" or exist="append"'
        )


@dataclass(frozen=True)
class Extension:
    """What a write adds to a manifest.

    If it `appends`, the new shards follow those of the manifest; otherwise they are the
    whole corpus. Messages name the corpus as `what`, and its folder as `folder`, which
    ends with a separator. `tokenizer` is the record of the tokenizer.
    """

    what: str
    folder: str
    options: WriteOptions
    intake: Intake
    arguments: Mapping[str, Any]
    appends: bool
    tokenizer: Mapping[str, Any] | None

    def extended(
        self,
        manifest: Manifest,
        shards: ShardTable,
        columns: Mapping[str, ColumnTable],
    ) -> Manifest:
        """Return the manifest with the new shards and their columns."""
        if self.appends:
            self.check_appendable(manifest)
        else:
            manifest = Manifest()
        if not manifest.versions:
            assert self.intake.dtype is not None  # noqa: S101 - it has seen a document
            manifest = Manifest(
                dtype_name=self.intake.dtype,
                block_size=self.options.block_size,
                separator=separator_items(self.options.separator, self.intake.dtype),
                tokenizer=self.tokenizer,
                kind=self.intake.kind,
            )
        twice = set(manifest.shards.names) & set(shards.names)
        if twice:
            raise FileExistsError(
                f"{self.folder}{min(twice)}: another process committed the same "
                "units during this write; to append them twice, write again"
            )
        everything = manifest.shards + shards
        (fingerprint,) = everything.fingerprints([len(everything)])
        version = Version(len(everything), fingerprint, self.arguments)
        return replace(
            manifest,
            shards=everything,
            columns=_extended(manifest, columns, len(shards)),
            versions=(*manifest.versions, version),
        )

    def check_appendable(self, manifest: Manifest) -> None:
        """Check that the documents fit the corpus; set the intake's dtype and kind."""
        intake, what = self.intake, self.what
        stored, kind = manifest.dtype_name, manifest.kind
        if stored is None:  # No version is committed yet.
            return
        if intake.dtype not in {None, stored}:
            raise ValueError(
                f"{what}: holds {stored}, so {intake.dtype} cannot be appended; "
                "leave dtype and vocab_size out, or write another corpus"
            )
        intake.dtype = stored
        if kind is not None:
            if intake.kind not in {None, kind}:
                raise ValueError(
                    f"{what}: holds {kind}, so {intake.kind} cannot be "
                    "appended; write text and ready-made tokens into different corpora"
                )
            intake.kind = kind
        if manifest.tokenizer != self.tokenizer:
            raise ValueError(
                f"{what}: was written with another tokenizer; append with the same "
                "tokenizer, or write another corpus"
            )
        for name, (per, dtype) in self.options.fields.columns.items():
            old = manifest.columns.get(name)
            if old is not None and (old.per, old.dtype) != (per, dtype):
                raise ValueError(
                    f"{what}: its column {name!r} holds {old.dtype} per {old.per}, so "
                    f"{dtype} per {per} cannot be appended; replace that column with "
                    "write_column, or write another corpus"
                )
        separator = separator_items(self.options.separator, stored)
        if separator != tuple(manifest.separator):
            raise ValueError(
                f"{what}: its documents end with {_ending(manifest.separator)}, "
                f"the new ones with {_ending(separator)}; append with the same "
                "separator, or write another corpus"
            )


def _extended(
    manifest: Manifest, new: Mapping[str, ColumnTable], num_new: int
) -> dict[str, ColumnTable]:
    """Join the columns of a manifest and of new shards; either may lack some."""
    num_old = len(manifest.shards)
    columns = {
        name: old + new[name] if name in new else old.followed_by(num_new)
        for name, old in manifest.columns.items()
    }
    for name, table in new.items():
        none = ColumnTable(table.per, table.dtype, (), (), ())
        columns.setdefault(name, none.followed_by(num_old) + table)
    return columns


def _ending(separator: Sequence[int | float]) -> str:
    return f"the separator {list(separator)}" if separator else "no separator"


def summary_of(
    folder: str,
    shards: ShardTable,
    dtype: str,
    started: float,
    *,
    kept: bool = False,
    sync_s: float = 0.0,
    num_dropped: int = 0,
) -> WriteSummary:
    (fingerprint,) = shards.fingerprints([len(shards)])
    return WriteSummary(
        paths=tuple(folder + each for each in shards.names),
        num_documents=sum(shards.own_documents()),
        num_tokens=sum(shards.num_tokens),
        num_bytes=sum(shards.num_bytes),
        dtype=dtype,
        fingerprint=fingerprint,
        kept=kept,
        duration_s=time.perf_counter() - started,
        sync_s=sync_s,
        num_dropped=num_dropped,
    )


def print_notice(line: str) -> None:
    sys.stderr.write(line + "\n")
