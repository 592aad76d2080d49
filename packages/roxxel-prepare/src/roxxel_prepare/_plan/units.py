"""Divide input files into units.

A unit is consecutive files, or a part of one large file. The list of inputs and their
sizes alone determine the units, so every process computes the same units.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from roxxel_prepare._inputs.formats import (
    HEAD_BYTES,
    format_of_head,
    is_compressed,
)
from roxxel_prepare._inputs.input_record import Part
from roxxel_prepare._inputs.inputs import parquet_table
from roxxel_prepare._inputs.opening import index_beside, opened
from roxxel_prepare._inputs.tables import divided_batches, divided_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_prepare._inputs.input_record import Inputs, Span

UNIT_BYTES = 1 << 26
"""Minimum size of a unit, unless the caller chooses another."""

# Number of objects whose footers or indexes are read at the same time.
_MOST_THREADS = 32

_MAX_UNITS = 1 << 14
"""Maximum number of units, so that the manifest of a large corpus opens fast."""


class UnitDone(NamedTuple):
    """What the progress counts of a unit that is done."""

    input_bytes: int
    num_documents: int
    num_tokens: int


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


def parts_of(inputs: Inputs) -> list[Part]:
    """Return all inputs, each as a whole."""
    files = zip(inputs.paths, inputs.forms, inputs.facts, strict=True)
    return [
        Part(path, form, None, None, number, facts)
        if (version := inputs.objects.get(path)) is None
        else Part(path, form, None, version, number)
        for number, (path, form, facts) in enumerate(files)
    ]


def units_of(inputs: Inputs, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Group consecutive files into units, and divide large files into several units."""
    sizes: list[int] = [size for _, size, *_ in inputs.facts]
    least = max(unit_bytes, sum(sizes) // _MAX_UNITS)
    return list(_units(inputs, sizes, least))


def _units(inputs: Inputs, sizes: list[int], least: int) -> Iterator[Unit]:
    waiting: list[Part] = []
    size = 0
    parts = parts_of(inputs)
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
    divided = partial(_divided, least=least, is_given=inputs.form is not None)
    if not inputs.objects:
        yield from map(divided, parts, sizes)
        return
    with ThreadPoolExecutor(_MOST_THREADS, "roxxel-plan") as pool:
        yield from pool.map(divided, parts, sizes)


def _divided(whole: Part, num_bytes: int, least: int, *, is_given: bool) -> list[Span]:
    """Divide a file into parts of about `least` bytes; return [] to keep it whole.

    `num_bytes` is the size of the file. Only Parquet, Arrow, `.ds`, and uncompressed
    lines and JSON lines can be divided.
    """
    path, name, version = whole.path, whole.form, whole.version
    count = num_bytes // max(1, least)
    if count < 2 or is_compressed(path):
        return []
    if name == "json":
        with opened(path, version, ahead_to=0) as file:
            head = file.read(HEAD_BYTES)
        name = format_of_head(path, name, head, is_given=is_given)
    if name == "ds":
        return divided_tokens(path, num_bytes, index_beside(path), least)
    if name in ("parquet", "arrow"):
        divided = _divided_rows if name == "parquet" else divided_batches
        with opened(path, version, ahead_to=0) as file:
            return divided(path, file, least)
    if name not in ("lines", "jsonl"):
        return []
    ends = [number * num_bytes // count for number in range(count + 1)]
    return list(pairwise(ends))


def _divided_rows(path: str, file: BinaryIO, least: int) -> list[Span]:
    metadata = parquet_table(path, file).metadata
    spans: list[Span] = []
    start = size = 0
    for stop in range(1, metadata.num_row_groups + 1):
        size += metadata.row_group(stop - 1).total_byte_size
        if size >= least or stop == metadata.num_row_groups:
            spans.append((start, stop))
            start, size = stop, 0
    return spans if len(spans) > 1 else []
