"""Sum the documents and tokens that shards record for each input file."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.tables import as_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roxxel_format._read.contents import Contents


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

    The files of one write are in the order of its inputs.

    `metadata_of` returns the metadata of a shard, and is called for every shard. Shards
    that an earlier release wrote, or that were not written from files, record no
    inputs.
    """
    versions = contents.manifest.versions if contents.manifest else ()
    stops = [version.num_shards for version in versions]
    found: dict[tuple[int, int], InputTotals] = {}
    for shard in range(len(contents.paths)):
        write = bisect_right(stops, shard)
        record = metadata_of(shard).get("input_files")
        for number, row in _rows(as_table(record)):
            # Several units of a preparation share a large file; each has its own
            # record.
            key = write, number
            found[key] = _sum(found[key], row) if key in found else row
    return [found[key] for key in sorted(found)]


def _rows(table: dict[str, Any]) -> Iterator[tuple[int, InputTotals]]:
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
