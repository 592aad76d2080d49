"""Checks of a write before any file changes, and its message about a kept corpus."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.screen import note

from roxxel_format._spec.layout import check_block_size
from roxxel_format._write.intake import separator_items
from roxxel_format._write.options import difference
from roxxel_format._write.shard_writer import metadata_json, shard_size_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.options import WriteOptions, WriteSummary


_RESERVED = frozenset({"arguments", "tokenizer_file", "unit", "padding", "cut"})
"""Keys of metadata that only a write may set: bins, or a corpus of one file."""


def check_data(data: object) -> None:
    """Check that data is an iterable of documents, not one document."""
    if isinstance(data, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", data)).__name__
        raise TypeError(
            f"data is one {kind}; pass an iterable of documents, such as [data]"
        )


def check_arguments(options: WriteOptions, name: CorpusName, exist: str) -> None:
    """Check the arguments of a write before any file changes."""
    if exist not in ("keep", "replace", "append", "error"):
        raise ValueError(
            f'exist must be "keep", "replace", "append" or "error", got {exist!r}'
        )
    if options.without_columns and exist != "append":
        raise ValueError(
            f'without_columns={[*options.without_columns]} is for exist="append", '
            f"where a corpus has columns already, but exist={exist!r}; leave it out"
        )
    check_block_size(options.block_size)
    reserved = sorted(_RESERVED.intersection(options.metadata or ()))
    if reserved:
        raise ValueError(
            f"metadata has {reserved[0]!r}, by which a reader knows what a write made; "
            "leave it out, also when you pass on the metadata of another corpus"
        )
    limit = options.max_shard_bytes
    if limit is not None:
        metadata_size = len(metadata_json(options.metadata or {}))
        least = shard_size_bound(8, options.block_size, metadata_size)
        least += 2 * options.block_size
        if limit < least:
            raise ValueError(
                f"max_shard_bytes={limit} is too small for a shard; use at least "
                f"{least}"
            )
    if name.manifest is None and options.fields.columns:
        raise ValueError(
            f"{name.single}: a corpus of one file has no columns, such as "
            f"{next(iter(options.fields.columns))!r}; write the corpus to a pattern "
            f'such as "{name.prefix}_*.rox", or to a folder'
        )
    if name.manifest is None and options.pack is not None:
        raise ValueError(
            f"{name.single}: is one file, but pack={options.pack} (--pack) makes a "
            "corpus whose manifest says how its documents are packed; write to a "
            f'pattern such as "{name.prefix}_*.rox", or to a folder'
        )
    if name.manifest is None and options.may_make_several(exist):
        raise ValueError(
            f'{name.single}: is one file, but max_shard_bytes or exist="append" makes '
            f'several shards, "{name.prefix}_*.rox"; delete the file first, or use '
            "this pattern"
        )


def check_kept(
    manifest: Manifest,
    arguments: Mapping[str, Any],
    what: str,
    describe: Callable[[Mapping[str, Any]], str | None] | None,
    *,
    may_append: bool,
) -> None:
    """Check that a write with `exist="keep"` may keep a corpus.

    Raises FileExistsError if a version of the corpus was made with other arguments.
    `describe` may word the difference better. `may_append` says whether to offer an
    append.
    """
    versions = manifest.versions
    for number, version in enumerate(versions, 1):
        if version.arguments == arguments:
            continue
        which = f"version {number} of {len(versions)} was " if len(versions) > 1 else ""
        better = None if describe is None else describe(version.arguments)
        found = better or difference(version.arguments, arguments)
        append = 'use exist="append" to add documents, ' if may_append else ""
        raise FileExistsError(
            f"{what}: {which}{found}; {append}write "
            'elsewhere, or use exist="replace", which deletes the shards from under '
            "every run that trains on them"
        )


def say_kept(
    what: str, kept: WriteSummary, options: WriteOptions, data: object
) -> None:
    """Print what a write with `exist="keep"` kept, and that it read no documents.

    Warns if `data`, as given to the write, visibly differs from what was kept. The
    warning names the line in the user's program.
    """
    size = f"kept {kept.num_tokens:,} tokens of {what}"
    if "inputs" in options.also:
        line = f"{size}: the same command made them from these inputs"
        note(line)
        return
    said = f'{size}; the documents given were not read (exist="replace" writes them)'
    other = _other_data(data, kept, options)
    if other is None:
        note(said)
    else:
        warnings.warn(f"{said}, although {other}", stacklevel=4)


def _other_data(data: object, kept: WriteSummary, options: WriteOptions) -> str | None:
    """Describe how documents in memory differ from those that were kept."""
    if not isinstance(data, Sequence) or options.pack is not None:
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
