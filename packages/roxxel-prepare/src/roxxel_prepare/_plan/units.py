"""Divide input files into units.

A unit is consecutive files, or a part of one large file. The list of inputs and their
sizes alone determine the units, so every process computes the same units.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from roxxel_prepare._inputs.documents import spans_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_prepare._inputs.input_record import Inputs, Part, Span

UNIT_BYTES = 1 << 26
"""Minimum size of a unit, unless the caller chooses another."""

# Number of objects whose footers or indexes are read at the same time.
_MOST_THREADS = 32

_MAX_UNITS = 1 << 14
"""Maximum number of units, so that the manifest of a large corpus opens fast."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The inputs that one process writes as whole shards; `num_bytes` is their size."""

    parts: tuple[Part, ...]
    num_bytes: int

    def __str__(self) -> str:
        path, span = self.parts[0].path, self.parts[0].span
        if span is not None:
            return f"{path} [{span[0]}:{span[1]}]"
        more = len(self.parts) - 1
        return f"{path} and {more} more" if more else path

    def row(self) -> list[Any]:
        """Return the unit for JSON: its text, the number of its files, its span."""
        start, stop = self.parts[0].span or (None, None)
        return [str(self), len(self.parts), start, stop]


def units_of(inputs: Inputs, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Group consecutive files into units, and divide large files into several units."""
    sizes: list[int] = [size for _, size, *_ in inputs.facts]
    least = max(unit_bytes, sum(sizes) // _MAX_UNITS)
    return list(_units(inputs, sizes, least))


def _units(inputs: Inputs, sizes: list[int], least: int) -> Iterator[Unit]:
    waiting: list[Part] = []
    size = 0
    parts = inputs.parts
    every_spans = _divided_all(inputs, parts, sizes, least)
    files = zip(parts, sizes, every_spans, strict=True)
    for whole, num_bytes, spans in files:
        if not spans:
            waiting.append(whole)
            size += num_bytes
        if waiting and (spans or size >= least):
            yield Unit(tuple(waiting), size)
            waiting, size = [], 0
        for number, span in enumerate(spans, 1):
            share = num_bytes * number // len(spans)
            before = num_bytes * (number - 1) // len(spans)
            yield Unit((replace(whole, span=span),), share - before)
    if waiting:
        yield Unit(tuple(waiting), size)


def _divided_all(
    inputs: Inputs, parts: list[Part], sizes: list[int], least: int
) -> Iterator[list[Span]]:
    """Divide every file; reads the footers and indexes of many objects at a time."""
    divided = partial(spans_in, least=least, is_given=inputs.form is not None)
    if not inputs.objects:
        yield from map(divided, parts, sizes)
        return
    with ThreadPoolExecutor(_MOST_THREADS, "roxxel-plan") as pool:
        yield from pool.map(divided, parts, sizes)
