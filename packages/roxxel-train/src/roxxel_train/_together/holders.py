"""Find the processes for which the others wait, by everybody's last sign of life.

A process that waits tells at which call, and a process that works tells what it does.
After a minute of waiting at a call, a line names the processes that have not arrived,
and another line follows each time that the wait has doubled.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from roxxel_train._together.texts import named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START = "start"
"""Name of the pause before the first run."""

MOST_NAMED = 4
"""Maximum number of activities in a line or a sign of life."""

_HELD_S = 60.0
"""Time that processes wait for others before a line names the others."""


class Life(NamedTuple):
    """A sign of life: `Progress` at this time.

    `does` is what threads of the process do (`roxxel_ckpt.activity`), and `awaits` the
    calls at which they wait for the other processes. In a step, a process awaits the
    others in this step, and what its threads do in the background does not count.
    """

    step: int
    pause: str | None
    own_s: float
    does: list[str]
    awaits: list[str | int]


class Holders:
    """Counts how long processes have waited at each call."""

    def __init__(self) -> None:
        # By call: the seconds so far, and those after which the next line is due.
        self._held: dict[str | int, tuple[float, float]] = {}

    def lines(
        self, lives: Mapping[int, Life], num_processes: int, waited_s: float
    ) -> Iterator[str]:
        """Add `waited_s` for all processes that wait now; yield the due lines."""
        awaited: defaultdict[str | int, list[int]] = defaultdict(list)
        for process, life in sorted(lives.items()):
            for call in life.awaits:
                awaited[call].append(process)
        held, self._held = self._held, {}
        for call, waiting in awaited.items():
            held_s, due_s = held.get(call, (0.0, _HELD_S))
            held_s += waited_s
            is_due = held_s > due_s
            self._held[call] = held_s, 2 * due_s if is_due else due_s
            if is_due and (holders := _holders(call, lives, num_processes)):
                where = f"step {call}" if isinstance(call, int) else repr(call)
                yield (
                    f"{named(waiting)} waited {held_s:.0f} s at {where} for "
                    + "; for ".join(holders)
                )


def during(step: int, pause: str | None) -> str:
    """Describe what a process does in or after a step, as the end of a sentence."""
    if pause == START:
        return " before its first run"
    return f" in step {step}" if pause is None else f" in {pause!r} after step {step}"


def _holders(
    call: str | int, lives: Mapping[int, Life], num_processes: int
) -> list[str]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for process in range(num_processes):
        life = lives.get(process)
        if life is None:
            groups[during(0, START)].append(process)
            continue
        if isinstance(call, int):
            is_late = life.step < call
        else:  # Who waits at another call is held up too.
            is_late = all(isinstance(each, int) for each in life.awaits)
        if is_late:
            does = f" ({', '.join(life.does)})" if life.does else ""
            groups[f"{during(life.step, life.pause)}{does}"].append(process)
    found = [f"{named(indices)}{text}" for text, indices in groups.items()]
    rest = sum(map(len, [*groups.values()][MOST_NAMED:]))
    return found[:MOST_NAMED] + ([f"{rest} more"] if rest else [])
