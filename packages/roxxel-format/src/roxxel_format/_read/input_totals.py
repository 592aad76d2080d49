"""Sum the documents and tokens that shards record for each input file."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.tables import as_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from roxxel_format._read.contents import Contents

MOST_INPUTS = 256
"""Maximum number of input files that a shard records; the last row sums the others."""

_JOINED_INPUTS = re.compile("and ([0-9]+) more")
"""Name under which a shard records the counts of inputs that have no row."""


@dataclass(frozen=True, slots=True)
class InputTotals:
    """The documents and tokens of a corpus that came from one input file.

    Attributes:
        name: Name of the file without its folder.
        num_documents: Number of documents from this file.
        num_tokens: Number of tokens in these documents, separators included.
        text_bytes: Size of the file's texts in UTF-8; None if the file holds tokens.
    """

    name: str
    num_documents: int
    num_tokens: int
    text_bytes: int | None


def input_totals(
    contents: Contents, metadata_of: Callable[[int], dict[str, Any]]
) -> list[InputTotals]:
    """Return the totals of each input file, write by write.

    The files of one write are in the order of its inputs. A version whose shards were
    merged has none, because its last shard may hold more than belongs to it.

    `metadata_of` returns the metadata of a shard, and is called for every shard. Shards
    that were not written from files record no inputs.
    """
    if contents.earlier is not None:
        return []
    versions = contents.manifest.versions if contents.manifest else ()
    stops = [version.num_shards for version in versions]
    found: dict[tuple[int, int, str], InputTotals] = {}
    for shard in range(len(contents.paths)):
        write = bisect_right(stops, shard)
        record = metadata_of(shard).get("input_files")
        for number, row in _rows(as_table(record)):
            # Several units of a preparation share a large file; each has its own
            # record. Merged shards of several writes may share a number.
            key = write, number, row.name
            found[key] = _sum(found[key], row) if key in found else row
    return [found[key] for key in sorted(found)]


def merged_inputs(
    records: Iterable[tuple[int, Mapping[str, Any]]],
) -> dict[str, list[Any]]:
    """Return one record of input files for several shards.

    The numbers of each write follow those of the write before.

    Args:
        records: For each shard, the number of its write, which does not descend, and
            its record, empty without one.
    """
    found: dict[tuple[int, str], InputTotals] = {}
    write, first = -1, 0
    for of_write, record in records:
        if of_write != write:
            write, first = of_write, max((at for at, _ in found), default=-1) + 1
        for number, row in _rows(record):
            key = first + number, row.name
            found[key] = _sum(found[key], row) if key in found else row
    rows = sorted(found.items())
    if len(rows) > MOST_INPUTS:
        rest = rows[MOST_INPUTS - 1 :]
        total = reduce(_sum, (row for _, row in rest))
        number = sum(num_joined(row.name) or 1 for _, row in rest)
        row = replace(total, name=f"and {number} more")
        rows = [*rows[: MOST_INPUTS - 1], (rest[0][0], row)]
    return {
        "numbers": [number for (number, _), _ in rows],
        "names": [row.name for _, row in rows],
        "documents": [row.num_documents for _, row in rows],
        "tokens": [row.num_tokens for _, row in rows],
        "text_bytes": [row.text_bytes for _, row in rows],
    }


def num_joined(name: str) -> int | None:
    """Return how many input files a row of this name sums; None for one file."""
    match = _JOINED_INPUTS.fullmatch(name)
    return int(match[1]) if match else None


def _rows(table: Mapping[str, Any]) -> Iterator[tuple[int, InputTotals]]:
    """Yield the inputs of a record; nothing if another program wrote the value."""
    names = ("numbers", "names", "documents", "tokens", "text_bytes")
    columns = [table.get(name) for name in names]
    if not all(isinstance(column, list) for column in columns):
        return
    for number, name, *counts in zip(*columns, strict=False):
        is_row = isinstance(number, int) and isinstance(name, str)
        if is_row and all(isinstance(each, int) for each in counts[:2]):
            size = counts[2] if isinstance(counts[2], int) else None
            yield number, InputTotals(name, counts[0], counts[1], size)


def _sum(one: InputTotals, other: InputTotals) -> InputTotals:
    sizes = [each for each in (one.text_bytes, other.text_bytes) if each is not None]
    return replace(
        one,
        num_documents=one.num_documents + other.num_documents,
        num_tokens=one.num_tokens + other.num_tokens,
        text_bytes=sum(sizes) if sizes else None,
    )
