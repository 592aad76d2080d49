"""Find the process for which the others wait, by how long each worked alone.

In every step all processes wait for the slowest one, so their steps take equally long,
and no clock tells which one is slow. Only the time outside of the compiled step
differs: reading a batch, and whatever else the host does. The processes publish this
time with their signs of life, and process 0 compares. If a device is slow, and not its
host, the step itself is slower, so this module does not find it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LEAST_SHARE = 0.1
_LEAST_S = 0.01
"""A process is behind if its lag is at least this share of a step, and at least this
time.
"""

_MOST_ROWS = 3
"""A process that is behind in this many consecutive rows gets a line in the log."""


class Stragglers:
    """Compares the own times of processes between one metrics row and the next.

    `read` returns, without waiting, the last step that each process has begun and its
    own seconds so far. It returns nothing in a single process, and in processes other
    than 0. When a process stays behind, `report` is called with a line.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[int, tuple[int, float]]],
        report: Callable[[str], object],
    ) -> None:
        self._read = read
        self._report = report
        self._before: Mapping[int, tuple[int, float]] = {}
        self._lag: dict[str, float] = {}
        self._behind: int | None = None
        self._num_rows = 0

    def lag(self, step: int, step_s: float) -> dict[str, float]:
        """Return the fields of a metrics row, whose steps took `step_s` on average.

        They are the slowest process, and the seconds per step that it needs beyond the
        others; there are none in a single process.
        If a process has published nothing new, the result is the same as for the row
        before.
        """
        now = self._read()
        if len(now) < 2:
            return {}
        before = self._before
        if before.keys() != now.keys():
            self._before = now
            return self._lag
        steps = {p: now[p][0] - before[p][0] for p in now}
        if min(steps.values()) < 1:
            return self._lag
        self._before = now
        own = {p: (now[p][1] - before[p][1]) / steps[p] for p in now}
        slowest = max(own, key=lambda p: own[p])
        others = median(seconds for p, seconds in own.items() if p != slowest)
        lag_s = own[slowest] - others
        self._watch(slowest, lag_s, step, step_s)
        self._lag = {"slowest_process": slowest, "lag_s": lag_s}
        return self._lag

    def _watch(self, slowest: int, lag_s: float, step: int, step_s: float) -> None:
        """Report a process once when it stays behind, and again after a recovery."""
        is_late = lag_s >= max(_LEAST_S, _LEAST_SHARE * step_s)
        process = slowest if is_late else None
        self._num_rows = self._num_rows + 1 if process == self._behind else 1
        self._behind = process
        if process is not None and self._num_rows == _MOST_ROWS:
            self._report(
                f"step {step}: process {process} stays behind: its host needs "
                f"{lag_s:.2f} s a step more than the others, which wait for it; "
                f"look at the disk, the network and the load of the host of process "
                f"{process}"
            )
