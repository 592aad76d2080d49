"""The sources of a curriculum: named readers with policies, checked to fit together.

Only this module, `part_reader` and `reading` use optional members of a `TokenReader`,
such as `with_version`, and only if the reader's type defines them. If a wrapper
forwards unknown members by `__getattr__`, `with_version` would return the wrapped
reader, which may read other tokens than the wrapper.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import ShardError, TokenReader

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import by_name, checked_primary, of_sources
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Source
from roxxel_curriculum.policy import DROP, REPEAT, Policy, parse_policy
from roxxel_curriculum.state import drawn_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_format import ChecksumError

MAX_TOKENS = 2**60
"""Largest number of tokens of a source: sums of token positions must fit 64 bits."""

_REQUIRED = [member for member in dir(TokenReader) if not member.startswith("_")]
_CALLS: dict[str, tuple[str, ...]] = {
    "read": ("starts", "length", "dtype"),
    "will_need": ("starts", "length"),
    "document_spans": ("start", "stop"),
    "with_version": ("fingerprint",),
    "with_check": ("check",),
    "damaged_tokens": ("error",),
    "read_into": ("starts", "out", "rows"),
    "window_spans": ("starts", "length"),
    "column": ("name",),
}
"""The methods of a reader that are called, with their positional arguments."""

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
    for source in sources:
        _check_reader(source)
        _check_same_kind(sources[0], source)
    return tuple(map(_pinned, sources))


def recorded_sources(
    state: Mapping[str, Any], readers: Mapping[str, TokenReader], primary: str
) -> tuple[Source, ...]:
    """Return the sources that a state records, with their policies and versions.

    `state` is the result of `checked_state`. A source without a reader is left out if
    no recorded phase draws from it.
    """
    readers = by_name(readers, primary, "sources")
    drawn = drawn_sources(state)
    missing = sorted(drawn - readers.keys())
    if missing:
        raise CurriculumError(
            f"the run read from source {missing[0]!r}, which has no reader; "
            f"give a reader for each of {', '.join(map(repr, sorted(drawn)))}"
        )
    sources = tuple(
        Source(
            name,
            readers[name],
            Policy(**entry["policy"]),
            PRIMARY if name == primary else name,
        )
        for entry in state["sources"]
        if (name := entry["name"]) in readers
    )
    for source in sources:
        _check_reader(source)
    fingerprints = {entry["name"]: entry["fingerprint"] for entry in state["sources"]}
    return at_versions(tuple(map(_pinned, sources)), fingerprints)


def batch_dtype(readers: Sequence[TokenReader]) -> np.dtype[Any]:
    """Return the dtype of a batch: int32 for integers, else the promoted dtype."""
    dtypes = [np.dtype(reader.dtype) for reader in readers]
    if dtypes[0].kind in "iu":
        return np.dtype(np.int32)
    return np.result_type(*dtypes)


def with_block_checks(source: Source) -> TokenReader:
    """Return a reader that verifies the checksum of every block it reads."""
    with_check = optional(source.reader, "with_check")
    if with_check is None:
        raise CurriculumError(
            f'check="blocks": source {source.name!r} is a '
            f"{type(source.reader).__name__}, which has no checksums; "
            "write the source as .rox shards to verify its blocks"
        )
    return with_check("blocks")


def damaged_tokens(reader: TokenReader, error: ChecksumError) -> tuple[int, int] | None:
    """Return the tokens of a damaged block; None if another source holds it."""
    found = optional(reader, "damaged_tokens")
    return None if found is None else found(error)


def mask_column(name: str, reader: TokenReader) -> Any | None:
    """Return the column `loss_mask` of a source, with an integer for each token.

    Raises ShardError if a shard lacks the column: its tokens would all be learned.
    """
    names = [optional(reader, each) or () for each in ("columns", "partial_columns")]
    if not any("loss_mask" in each for each in names):
        return None
    column = optional(reader, "column")("loss_mask")
    if column.per != "token" or column.dtype.kind not in "biu":
        raise CurriculumError(
            f"the column 'loss_mask' of source {name!r} has {column.dtype} per "
            f"{column.per}; write an integer, 0 or 1, for each token"
        )
    return column


def token_range(reader: TokenReader) -> tuple[int, int] | None:
    """Return the smallest and largest token of a source; None if not recorded."""
    return optional(reader, "token_range_seen")


def version_fingerprints(reader: TokenReader) -> set[str]:
    """Return the fingerprints of a corpus at all its versions."""
    return {reader.fingerprint, *(optional(reader, "versions") or ())}


def shard_digests(reader: TokenReader) -> list[str]:
    """Return the digest of each shard of a corpus; none if the reader has no shards."""
    return [*(optional(reader, "shard_digests") or ())]


def prefetches_documents(reader: TokenReader) -> bool:
    """Return whether `will_need` of a reader has the optional keyword `documents`."""
    return _accepts(reader.will_need, None, None, documents=False)


def at_versions(
    sources: Sequence[Source], fingerprints: Mapping[str, str]
) -> tuple[Source, ...]:
    """Return the sources, each at its version in `fingerprints`.

    A source stays the same if `fingerprints` or the reader lacks the version.
    """
    return tuple(_at_version(source, fingerprints) for source in sources)


def _pinned(source: Source) -> Source:
    """Fix a source at its current version, so that later writes have no effect."""
    with_version = optional(source.reader, "with_version")
    if with_version is None:
        return _with_bins(source)
    return _with_bins(replace(source, reader=with_version(source.reader.fingerprint)))


def _with_bins(source: Source) -> Source:
    """Return a source with the unit, padding and spans that its reader declares."""
    unit, padding = (optional(source.reader, each) for each in ("unit", "num_padding"))
    # Only a `PartReader` declares spans: it is cut as the source whose part it is.
    spans = optional(source.reader, "num_spans")
    return replace(source, unit=unit or 1, num_padding=padding or 0, num_spans=spans)


def _at_version(source: Source, fingerprints: Mapping[str, str]) -> Source:
    wanted = fingerprints.get(source.name)
    with_version = optional(source.reader, "with_version")
    if with_version is None or wanted in (None, source.reader.fingerprint):
        return source
    try:
        return _with_bins(replace(source, reader=with_version(wanted)))
    except ShardError:
        # The wanted version is missing, so the source keeps its own version.
        # `_run_differences` then reports that the two fingerprints differ.
        return source


def optional(reader: TokenReader, member: str) -> Any:
    """Return a member of a reader; None if the reader's type does not define it."""
    return getattr(reader, member) if hasattr(type(reader), member) else None


def _optional_call(reader: TokenReader, member: str) -> Callable[..., object] | None:
    """Return a method of a reader; None if the reader has no such method."""
    is_required = member in _REQUIRED
    return getattr(reader, member) if is_required else optional(reader, member)


def _accepts(
    method: Callable[..., object] | None, *arguments: object, **keywords: object
) -> bool:
    """Return whether a method can be called so; True if it cannot be known."""
    if method is None:
        return True
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # A method that is written in C has no signature.
        return True
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        return False
    return True


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
    # Check the type first: `hasattr(reader, "fingerprint")` computes the fingerprint.
    missing = [
        member
        for member in _REQUIRED
        if not (hasattr(type(reader), member) or hasattr(reader, member))
    ]
    if missing:
        raise TypeError(
            f"source {source.name!r} is a {type(reader).__name__}, not a token reader: "
            f"it has no {', '.join(missing)}; open the corpus with Roxxel(filepath)"
        )
    for member, arguments in _CALLS.items():
        if not _accepts(_optional_call(reader, member), *arguments):
            raise TypeError(
                f"source {source.name!r} is a {type(reader).__name__}, whose {member} "
                f"does not accept ({', '.join(arguments)}); write {member} with the "
                "arguments of roxxel_format.TokenReader"
            )
    unit = optional(reader, "unit")
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
        _check_int32(source.name, dtype, token_range(reader))


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
