"""The sources of a curriculum: named readers with policies, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from operator import index as as_index
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import Roxxel, ShardError, TokenReader

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import of_sources
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Source
from roxxel_curriculum.policy import DROP, REPEAT, as_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum.policy import Policy

MAX_TOKENS = 2**60
"""Largest number of tokens of a source: sums of token positions must fit 64 bits."""

_INT32 = np.iinfo(np.int32)


def checked_sources(
    primary: TokenReader,
    mix: Mapping[str, TokenReader] | None,
    policies: Mapping[str, Policy | str | int],
    primary_name: str,
    tokenizers: Mapping[str, str],
) -> tuple[Source, ...]:
    """Return the sources with their policies, the primary first, at fixed versions."""
    mix = {} if mix is None else mix
    if not isinstance(cast("Any", mix), Mapping):
        raise TypeError(
            f"mix_streamers must map names to token readers, got {type(mix).__name__}"
        )
    if PRIMARY in mix:
        raise CurriculumError(
            f"mix_streamers has a source named {PRIMARY!r}, which names the primary; "
            "give it another name"
        )
    for name in mix:
        if not isinstance(cast("Any", name), str) or not name:
            raise TypeError(f"a source's name must be a non-empty str, got {name!r}")
    if primary_name in mix:
        raise CurriculumError(
            f"primary={primary_name!r} is also the name of a source in mix_streamers; "
            "give the primary another name"
        )
    names = [primary_name, *mix]
    policies = of_sources(policies, names, "policies")
    declared = of_sources(tokenizers, names, "tokenizers")
    sources: list[Source] = []
    for name, reader, default, order in (
        (primary_name, primary, REPEAT, PRIMARY),
        *((name, reader, DROP, name) for name, reader in mix.items()),
    ):
        policy = as_policy(policies.get(name, default))
        source = opened(name, reader, policy, order)
        sources.append(replace(source, declared=declared.get(name)))
        _check_same_kind(sources[0], source)
    return tuple(sources)


def opened(name: str, reader: TokenReader, policy: Policy, order_name: str) -> Source:
    """Return a source at the reader's current version; later writes have no effect.

    Raises:
        CurriculumError: No batch can be read from it.
        TypeError: It is no token reader.
    """
    if not isinstance(cast("Any", reader), TokenReader):
        raise TypeError(
            f"source {name!r} is a {type(reader).__name__}, which is no "
            "roxxel_format.TokenReader; open a corpus with Roxxel(filepath), or begin "
            "a reader of your own with `class NAME(TokenReader):`"
        )
    reader = reader.with_version(reader.fingerprint)
    source = Source(name, reader, policy, order_name, **_facts(reader))
    _check_readable(source)
    return source


def _facts(reader: TokenReader) -> dict[str, Any]:
    """Return what a source says of its reader. Nothing else asks the reader for it."""
    return {
        "num_tokens": as_index(reader.num_tokens),
        "dtype": np.dtype(reader.dtype),
        "fingerprint": reader.fingerprint,
        "tokenizer": reader.tokenizer,
        "token_range": reader.token_range_seen,
        "unit": reader.unit or 1,
        "num_padding": reader.num_padding,
        "path": reader.filepath if isinstance(reader, Roxxel) else None,
        "has_mask": "loss_mask" in reader.columns,
    }


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
    """Return the sources, each at the version that `fingerprints` gives by name.

    A source without the version stays as it is. A comparison then reports it.
    """
    found: list[Source] = []
    for source in sources:
        reader = source.reader
        with suppress(ShardError):
            reader = at_version(reader, fingerprints.get(source.name))
        is_same = reader is source.reader
        other = source if is_same else replace(source, reader=reader, **_facts(reader))
        found.append(other)
    return tuple(found)


def at_version(reader: TokenReader, fingerprint: str | None) -> TokenReader:
    """Return a reader at a version; at its own for None.

    Raises:
        ShardError: The reader lacks the version.
    """
    if fingerprint in {None, reader.fingerprint}:
        return reader  # Another copy would open its files again.
    return reader.with_version(cast("str", fingerprint))


def _check_readable(source: Source) -> None:
    if not 0 < source.num_tokens <= MAX_TOKENS:
        raise CurriculumError(
            f"source {source.name!r} holds {source.num_tokens} tokens; "
            "a source needs at least 1 and at most 2**60"
        )
    dtype = source.dtype
    if dtype.kind in "iu" and not np.can_cast(dtype, np.int32, "safe"):
        _check_int32(source.name, dtype, source.token_range)


def _check_int32(name: str, dtype: np.dtype[Any], seen: tuple[int, int] | None) -> None:
    least, greatest = (0, 0) if seen is None else seen
    if greatest > _INT32.max or least < _INT32.min:
        raise CurriculumError(
            f"source {name!r} holds {dtype.name} tokens from {least} to {greatest}, "
            f"but a batch is int32 and holds tokens from {_INT32.min} to {_INT32.max}; "
            "write the source again with a vocabulary that fits"
        )


def _check_same_kind(primary: Source, source: Source) -> None:
    first, other = primary.dtype, source.dtype
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
