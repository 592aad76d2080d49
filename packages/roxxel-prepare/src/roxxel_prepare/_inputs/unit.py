"""What a unit is: consecutive input files, or a part of one large file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_store.client import ObjectVersion

Span: TypeAlias = tuple[int, int]
"""A part of a file, `[start, stop)`: bytes, row groups of Parquet, record batches of
Arrow, or documents of `.ds`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or with `span` a part of the file; see `documents_in`.

    `version` is the version of an object in a bucket. `number` is the number of the
    file among all inputs. `recorded` is the row of a file on a disk in `Inputs.facts`.
    """

    path: str
    span: Span | None = None
    version: ObjectVersion | None = None
    number: int = 0
    recorded: Sequence[Any] | None = None


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
