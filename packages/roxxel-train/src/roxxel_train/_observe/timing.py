"""What counts as time of training, and the rates of a row."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from roxxel_loader import StreamStats

TIMING_FIELDS = frozenset(
    {
        "time",
        "step_s",
        "tokens_per_s",
        "model_flops_per_s",
        "mfu",
        "wait_s",
        "wait_share",
        "read_s",
        "assemble_s",
        "transfer_s",
        "compile_s",
        "eval_s",
        "save_s",
        "device_bytes",
        "device_peak_bytes",
    }
)
"""Fields of a row that depend on the clock and the machine. All others are the same in
a run that was interrupted as in a run that was not."""

_LEAST_SHOWN_S = 1e-3


class Stopwatch:
    """Measures training, and other work of the loop separately by name.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start_s = clock()
        self._excluded_s = 0.0
        self._since_row: dict[str, float] = {}

    def now(self) -> float:
        """Return the seconds of training so far."""
        return self._clock() - self._start_s - self._excluded_s

    @contextmanager
    def excluded(self, name: str) -> Generator[None]:
        """Count the time of a block under `name` and not as training."""
        start_s = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start_s
            self._excluded_s += seconds
            self._since_row[name] = self._since_row.get(name, 0.0) + seconds

    def close_row(self) -> dict[str, float]:
        """Return the excluded times since the last call, by name."""
        closed, self._since_row = self._since_row, {}
        return {name: s for name, s in closed.items() if s >= _LEAST_SHOWN_S}


@dataclass(frozen=True)
class Mark:
    """How far training was when a row was made.

    Attributes:
        step: Updates done.
        tokens: Tokens delivered since the first step.
        at_s: Seconds of training.
        stream: Times of the stream of batches; None before the first batch.
    """

    step: int
    tokens: int
    at_s: float
    stream: StreamStats | None = None

    def rates_since(self, last: Mark) -> dict[str, float]:
        """Return the timing fields of a row from the mark of the row before.

        `read_s`, `assemble_s` and `transfer_s` divide the wait in the proportions of
        making the batches: a background thread may spend longer than the loop waits.
        """
        seconds = max(self.at_s - last.at_s, 1e-9)
        names = ("waited_s", "read_s", "assemble_s", "transfer_s")
        waited, read, assemble, transfer = (
            getattr(self.stream, name, 0.0) - getattr(last.stream, name, 0.0)
            for name in names
        )
        made = read + assemble + transfer
        share = waited / made if made else 0.0
        return {
            "step_s": seconds / max(self.step - last.step, 1),
            "tokens_per_s": (self.tokens - last.tokens) / seconds,
            "wait_s": waited,
            "wait_share": min(waited / seconds, 1.0),
            "read_s": share * read,
            "assemble_s": share * assemble,
            "transfer_s": share * transfer,
        }
