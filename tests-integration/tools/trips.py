"""Counts the modules that one job passes through, and its calls back.

    python tests-integration/tools/trips.py

prints a row for each trip of the lower house, such as an array that becomes a corpus:
the modules of Roxxel that run, their functions and calls, and the returns. A return is
a pair of modules of which the first calls the second, although the second was entered
before it: there a reader who follows the job down goes back up. Each trip is made once
before it is counted, so imports and first checks do not count.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_prepare import write_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Trip(NamedTuple):
    """What ran for one job."""

    modules: int
    functions: int
    calls: int
    returns: int


def trip(job: Callable[[], object]) -> Trip:
    """Run a job in this thread, and return what it passed through."""
    entered: dict[str, int] = {}
    functions: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    calls = 0

    def module_of(frame: FrameType | None) -> str:
        name: str = "" if frame is None else frame.f_globals.get("__name__", "")
        return name if name.startswith("roxxel_") else ""

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        name, caller = module_of(frame), module_of(frame.f_back)
        if event != "call" or not name:
            return
        calls += 1
        functions.add(f"{name} {frame.f_code.co_qualname}")
        if name in entered and entered[name] < entered.get(caller, -1):
            pairs.add((caller, name))
        entered.setdefault(name, len(entered))

    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
    return Trip(len(entered), len(functions), calls, len(pairs))


def trips(folder: Path) -> dict[str, Trip]:
    """Return the trips of the lower house, made in a folder."""
    array = np.arange(5000, dtype=np.uint16) % 1000
    text = folder / "a.txt"
    text.write_text("one\ntwo\n" * 200)
    numbers = iter(range(10**6))
    corpus = Roxxel(folder / "grown_*.rox")
    corpus.write([array, array], vocab_size=1000)
    curriculum = Curriculum(corpus, [Phase(4, 2, 64), Phase(4, 2, 128)])
    state = curriculum.sampler(0).state(2)

    def new() -> Roxxel:
        return Roxxel(folder / f"new{next(numbers)}_*.rox")

    jobs: dict[str, Callable[[], object]] = {
        "an array to a corpus": lambda: new().write([array], vocab_size=1000),
        "an append": lambda: Roxxel(folder / "grown_*.rox").write(
            [array], vocab_size=1000, exist="append"
        ),
        "a text file to a shard": lambda: write_files(
            folder / f"text{next(numbers)}_*.rox", text, tokenizer="bytes", workers=1
        ),
        "phases to a sampler": lambda: Curriculum(
            corpus, [Phase(4, 2, 64), Phase(4, 2, 128)]
        ).sampler(0),
        "a state to a resumed sampler": lambda: Curriculum(
            corpus, [Phase(4, 2, 64), Phase(4, 2, 128)]
        ).sampler(0, state),
        "documents[i], warm": lambda: corpus.documents[1],
        "a window, warm": lambda: corpus.read([5], 64),
    }
    found: dict[str, Trip] = {}
    for name, job in jobs.items():
        job()
        found[name] = trip(job)
    return found


def main() -> None:
    """Print the trips."""
    with tempfile.TemporaryDirectory() as folder:
        for name, found in trips(Path(folder)).items():
            print(
                f"{name}: {found.modules} modules, {found.functions} functions, "
                f"{found.calls} calls, {found.returns} returns"
            )


if __name__ == "__main__":
    main()
