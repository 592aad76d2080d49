"""Flatten a metrics row into the numbers and texts that a sink draws, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NOT_DRAWN = ("kind", "step", "time", "digest")


def drawn_values(row: Mapping[str, Any]) -> Iterator[tuple[str, str | float]]:
    """Yield the numbers and texts of a row by name, such as `tokens_by_source/self`."""
    values = {name: value for name, value in row.items() if name not in _NOT_DRAWN}
    yield from _leaves("", values)


def _leaves(
    prefix: str, values: Mapping[str, Any]
) -> Iterator[tuple[str, str | float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(f"{prefix}{name}/", cast("dict[str, Any]", value))
        elif isinstance(value, str | int | float):
            yield prefix + name, value
