"""The sources of a curriculum: named readers with policies, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import ShardError, TokenReader

from roxxel_curriculum._bind.part_reader import PartReader
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import checked_primary, of_sources
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Source
from roxxel_curriculum.policy import DROP, REPEAT, Policy, parse_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TOKENS = 2**60
"""Largest number of tokens of a source: sums of token positions must fit 64 bits."""

_INT32 = np.iinfo(np.int32)


def checked_sources(
    primary: TokenReader,
    mix: Mapping[str, TokenReader] | None,
    policies: Mapping[str, Policy | str | int] | None,
    primary_name: str,
) -> tuple[Source, ...]:
    """Return the sources with their policies, the primary first, at fixed versions."""
    mix = _checked_mapping(mix, "mix_streamers must map names to token readers")
    if PRIMARY in mix:
        raise CurriculumError(
            f"mix_streamers has a source named {PRIMARY!r}, which names the primary; "
            "give it another name"
        )
    for name in mix:
        if not isinstance(cast("Any", name), str) or not name:
            raise TypeError(f"a source's name must be a non-empty str, got {name!r}")
    primary_name = checked_primary(primary_name, mix)
    policies = _checked_mapping(policies, "policies must map source names to policies")
    policies = of_sources(policies, [primary_name, *mix], "policies")
    sources = tuple(
        Source(name, reader, parse_policy(policies.get(name, default), name), order)
        for name, reader, default, order in (
            (primary_name, primary, REPEAT, PRIMARY),
            *((name, reader, DROP, name) for name, reader in mix.items()),
        )
    )
    opened = checked_readers(sources)
    for source in opened:
        _check_same_kind(opened[0], source)
    return opened


def checked_readers(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return sources at fixed versions; raise an error if one cannot be read."""
    for source in sources:
        _check_reader(source)
    return tuple(map(_pinned, sources))


def batch_dtype(readers: Sequence[TokenReader]) -> np.dtype[Any]:
    """Return the dtype of a batch: int32 for integers, else the promoted dtype."""
    dtypes = [np.dtype(reader.dtype) for reader in readers]
    if dtypes[0].kind in "iu":
        return np.dtype(np.int32)
    return np.result_type(*dtypes)


def with_block_checks(source: Source) -> TokenReader:
    """Return a reader that verifies the checksum of every block it reads."""
    try:
        return source.reader.with_check("blocks")
    except ValueError as error:
        raise CurriculumError(
            f'check="blocks": source {source.name!r} cannot be checked: {error}'
        ) from error


def mask_column(name: str, reader: TokenReader) -> Any | None:
    """Return the column `loss_mask` of a source, with an integer for each token.

    Raises ShardError if a shard lacks the column: else the run would learn all its
    tokens.
    """
    if "loss_mask" not in (*reader.columns, *reader.partial_columns):
        return None
    column = reader.column("loss_mask")
    if column.per != "token" or column.dtype.kind not in "biu":
        raise CurriculumError(
            f"the column 'loss_mask' of source {name!r} has {column.dtype} per "
            f"{column.per}; write an integer, 0 or 1, for each token"
        )
    return column


def at_versions(
    sources: Sequence[Source], fingerprints: Mapping[str, str]
) -> tuple[Source, ...]:
    """Return the sources, each at its version in `fingerprints`.

    A source stays the same if `fingerprints` or the reader lacks the version.
    """
    return tuple(_at_version(source, fingerprints) for source in sources)


def _pinned(source: Source) -> Source:
    """Fix a source at its current version, so that later writes have no effect."""
    return _with_reader(source, source.reader.with_version(source.reader.fingerprint))


def _at_version(source: Source, fingerprints: Mapping[str, str]) -> Source:
    wanted = fingerprints.get(source.name)
    if wanted in (None, source.reader.fingerprint):
        return source
    try:
        return _with_reader(source, source.reader.with_version(wanted))
    except ShardError:
        # The wanted version is missing, so the source keeps its own version.
        # The comparison then reports that the two fingerprints differ.
        return source


def _with_reader(source: Source, reader: TokenReader) -> Source:
    return replace(
        source,
        reader=reader,
        unit=reader.unit or 1,
        num_padding=reader.num_padding,
        # A part is cut as the source whose part it is.
        num_spans=reader.num_spans if isinstance(reader, PartReader) else None,
    )


def _checked_mapping(
    value: Mapping[str, Any] | None, message: str
) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(cast("Any", value), Mapping):
        raise TypeError(f"{message}, got {type(value).__name__}")
    return value


def _check_reader(source: Source) -> None:
    reader = source.reader
    if not isinstance(cast("Any", reader), TokenReader):
        raise TypeError(
            f"source {source.name!r} is a {type(reader).__name__}, which is no "
            "roxxel_format.TokenReader; open a corpus with Roxxel(filepath), or begin "
            "a reader of your own with `class NAME(TokenReader):`"
        )
    unit = reader.unit
    if unit is not None and (unit < 2 or reader.num_tokens % unit):
        raise CurriculumError(
            f"source {source.name!r} holds {reader.num_tokens} tokens in bins of "
            f"{unit}, which are not whole; a bin has at least 2 tokens, so correct "
            "the reader, or write the corpus again"
        )
    if not 0 < reader.num_tokens <= MAX_TOKENS:
        raise CurriculumError(
            f"source {source.name!r} holds {reader.num_tokens} tokens; "
            "a source needs at least 1 and at most 2**60"
        )
    dtype = np.dtype(reader.dtype)
    if dtype.kind in "iu" and not np.can_cast(dtype, np.int32, "safe"):
        _check_int32(source.name, dtype, reader.token_range_seen)


def _check_int32(name: str, dtype: np.dtype[Any], seen: tuple[int, int] | None) -> None:
    least, greatest = (0, 0) if seen is None else seen
    if greatest > _INT32.max or least < _INT32.min:
        raise CurriculumError(
            f"source {name!r} holds {dtype.name} tokens from {least} to {greatest}, "
            f"but a batch is int32 and holds tokens from {_INT32.min} to {_INT32.max}; "
            "write the source again with a vocabulary that fits"
        )


def _check_same_kind(primary: Source, source: Source) -> None:
    first, other = np.dtype(primary.reader.dtype), np.dtype(source.reader.dtype)
    if _kind(first) != _kind(other):
        raise CurriculumError(
            f"source {source.name!r} holds {_kind(other)} tokens ({other.name}) but "
            f"the primary holds {_kind(first)} tokens ({first.name}); "
            "a batch has one kind, so write this source again with the primary's dtype"
        )


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu":
        return "integer"
    return {"f": "floating-point", "b": "boolean"}.get(dtype.kind, dtype.name)
