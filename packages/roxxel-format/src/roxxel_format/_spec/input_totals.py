"""Count documents and tokens by input file, in the metadata of shards and back."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.manifest import as_table

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class InputCounts:
    """Documents and tokens by input file, as a shard's metadata record them.

    A file is known by its number among the inputs of a write and its name, because
    merged shards of several writes may share a number.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], list[Any]] = {}

    def __bool__(self) -> bool:
        """Return whether any document was counted."""
        return bool(self._found)

    def add(
        self,
        file: tuple[int, str],
        num_documents: int,
        num_tokens: int,
        text_bytes: int | None,
    ) -> None:
        """Count documents of a file; `text_bytes` is None for ready-made tokens."""
        row = self._found.setdefault(file, [0, 0, None])
        row[0] += num_documents
        row[1] += num_tokens
        if text_bytes is not None:
            row[2] = (row[2] or 0) + text_bytes

    def add_record(self, record: object, first: int = 0) -> None:
        """Add a record, if there is one; its number 0 becomes `first`."""
        table = as_table(record)
        names = ("numbers", "names", "documents", "tokens", "text_bytes")
        lists = [table.get(name) for name in names]
        # A `ShardWriter` may store anything by this name.
        if all(isinstance(each, list) for each in lists):
            for number, name, *counts in zip(*lists, strict=False):
                self.add((first + number, name), *counts)

    @property
    def next_number(self) -> int:
        """The first number after those of all files."""
        return max((number for number, _ in self._found), default=-1) + 1

    def totals(self) -> list[InputTotals]:
        """Return the totals of each file, in the order of the inputs."""
        return [
            InputTotals(name, *counts)
            for (_, name), counts in sorted(self._found.items())
        ]

    def record(self) -> dict[str, list[Any]]:
        """Return the record; above `MOST_INPUTS` files, its last row sums the rest."""
        rows = sorted(self._found.items())
        if len(rows) > MOST_INPUTS:
            rest = rows[MOST_INPUTS - 1 :]
            number = sum(num_joined(name) or 1 for (_, name), _ in rest)
            last, name = InputCounts(), f"and {number} more"
            for _, counts in rest:
                last.add((rest[0][0][0], name), *counts)
            rows = [*rows[: MOST_INPUTS - 1], *last._found.items()]
        return {
            "numbers": [number for (number, _), _ in rows],
            "names": [name for (_, name), _ in rows],
            "documents": [counts[0] for _, counts in rows],
            "tokens": [counts[1] for _, counts in rows],
            "text_bytes": [counts[2] for _, counts in rows],
        }


def input_totals(records: Iterable[tuple[int, object]]) -> list[InputTotals]:
    """Return the totals of each input file, write by write.

    The files of one write are in the order of its inputs.

    Args:
        records: As for `merged_inputs`.
    """
    # Several units of a preparation share a large file; each has its own record.
    found: defaultdict[int, InputCounts] = defaultdict(InputCounts)
    for write, record in records:
        found[write].add_record(record)
    return [row for counts in found.values() for row in counts.totals()]


def merged_inputs(records: Iterable[tuple[int, object]]) -> InputCounts:
    """Return the counts of several shards.

    The numbers of each write follow the numbers of the write before.

    Args:
        records: For each shard, the number of its write (never descending), and its
            record or None.
    """
    found = InputCounts()
    write, first = -1, 0
    for of_write, record in records:
        if of_write != write:
            write, first = of_write, found.next_number
        found.add_record(record, first)
    return found


def num_joined(name: str) -> int | None:
    """Return how many input files a row of this name sums; None for one file."""
    match = _JOINED_INPUTS.fullmatch(name)
    return int(match[1]) if match else None
