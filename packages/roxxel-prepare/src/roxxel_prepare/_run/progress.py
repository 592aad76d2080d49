"""The progress of a preparation: counts, rates, and the ETA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from roxxel_store.amounts import short_count, short_duration, short_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_prepare._plan.units import UnitDone

# The whole line should fit a terminal of 80 columns.
_count, _size = partial(short_count, digits=3), partial(short_size, digits=3)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all units of a preparation, or of one part.

    Attributes:
        num_units: All units.
        num_bytes: Size of all inputs.
        num_done: Units that are done, in this run or before.
        num_failed: Units that failed in this run.
        num_retries: How often units were started again after a worker or its node died.
        done_bytes: Size of the inputs of units that are done.
        num_documents: Documents of units that are done.
        num_tokens: Tokens of units that are done.
        new_bytes: Size of the inputs of units that this run has written.
        new_tokens: Tokens that this run has written.
        duration_s: Seconds since this run began to write.
        is_stopped: Whether this run writes no further units.
    """

    num_units: int
    num_bytes: int
    num_done: int = 0
    num_failed: int = 0
    num_retries: int = 0
    done_bytes: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    new_bytes: int = 0
    new_tokens: int = 0
    duration_s: float = 0.0
    is_stopped: bool = False

    @property
    def is_end(self) -> bool:
        """Whether every unit is done or failed, or this run stopped."""
        return self.is_stopped or self.num_done + self.num_failed == self.num_units

    def with_done(self, records: Sequence[UnitDone]) -> Progress:
        """Return the progress after units that were done before this run."""
        return replace(
            self,
            num_done=self.num_done + len(records),
            done_bytes=self.done_bytes + sum(each.input_bytes for each in records),
            num_documents=self.num_documents
            + sum(each.num_documents for each in records),
            num_tokens=self.num_tokens + sum(each.num_tokens for each in records),
        )

    def with_new(self, record: UnitDone, duration_s: float) -> Progress:
        """Return the progress after a unit that this run has written."""
        return replace(
            self.with_done([record]),
            new_bytes=self.new_bytes + record.input_bytes,
            new_tokens=self.new_tokens + record.num_tokens,
            duration_s=duration_s,
        )

    def __str__(self) -> str:
        return ", ".join(self._parts().values())

    def fitting(self, width: int) -> str:
        """Return the text; leave out counts until it fits `width` characters.

        The units, the ETA, and failures always stay.

        >>> Progress(num_units=9, num_bytes=8000, num_tokens=5).fitting(40)
        '0 of 9 units, 0 B of 8 kB, 5 tokens'
        """
        parts = self._parts()
        for name in ("documents", "tokens", "rate", "bytes"):
            if len(", ".join(parts.values())) <= width:
                break
            parts.pop(name, None)
        return ", ".join(parts.values())

    def _parts(self) -> dict[str, str]:
        parts = {
            "units": f"{self.num_done} of {self.num_units} units",
            "bytes": f"{_size(self.done_bytes)} of {_size(self.num_bytes)}",
            "documents": f"{_count(self.num_documents)} documents",
            "tokens": f"{_count(self.num_tokens)} tokens",
        }
        if self.new_bytes and self.duration_s:
            rate = round(self.new_tokens / self.duration_s)
            parts["rate"] = f"{_count(rate)} tokens/s"
            left_bytes = self.num_bytes - self.done_bytes
            left = short_duration(left_bytes * self.duration_s / self.new_bytes)
            end = "stopped" if self.is_stopped else "done"
            parts["left"] = end if self.is_end else f"{left} left"
        if self.num_retries:
            ending = "y" if self.num_retries == 1 else "ies"
            parts["retries"] = f"{self.num_retries} retr{ending}"
        if self.num_failed:
            parts["failed"] = f"{self.num_failed} failed"
        return parts
