"""Counts the modules that one job passes through, and its calls back.

    python tests-integration/tools/trips.py

prints a row for each trip of the lower house, such as an array that becomes a corpus:
the modules of Roxxel that run, their functions, the moves and the returns. A move is a
call in another module than the call before it, on the thread of the job. A return is a
pair of modules of which the first calls the second, although the second was entered
before it: there a reader who follows the job down goes back up. Each trip is made once
before it is counted, so imports and first checks do not count. Modules of the package
roxxel itself are left out, and so are generated functions, such as the constructor of a
dataclass. `paths.py` beside it counts the trips that need JAX.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_prepare import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType


class Trip:
    """What ran for one job; `modules` in the order of their first calls."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.num_moves = 0
        self._thread = threading.get_ident()
        self._at = ""
        self._functions: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()

    @property
    def num_returns(self) -> int:
        """Pairs of modules of which the second was entered first."""
        at = {module: number for number, module in enumerate(self.modules)}
        return sum(at[called] < at[caller] for caller, called in self._pairs)

    def note(self, caller: str | None, called: str, function: str) -> None:
        """Note a call of a function, from a module or from outside."""
        if called != self._at and threading.get_ident() == self._thread:
            self._at = called
            self.num_moves += 1
        self._functions.add(f"{called} {function}")
        if called not in self.modules:
            self.modules.append(called)
        if caller is not None and caller in self.modules:
            self._pairs.add((caller, called))

    def __str__(self) -> str:
        return (
            f"{len(self.modules)} modules, {len(self._functions)} functions, "
            f"{self.num_moves} moves, {self.num_returns} returns"
        )


class Calls:
    """The calls of functions of Roxxel, in every thread that starts meanwhile."""

    def __init__(self) -> None:
        self._trip: Trip | None = None

    @contextlib.contextmanager
    def watched(self) -> Generator[None]:
        """Watch this thread, and those that start within the context.

        The profiler does not reach threads that live already.
        """
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextlib.contextmanager
    def recorded(self) -> Generator[Trip]:
        """Give a trip that holds the calls once the context is left."""
        # The finalizers of what was used before are no part of this trip.
        gc.collect()
        gc.disable()
        trip = self._trip = Trip()
        try:
            yield trip
        finally:
            self._trip = None
            gc.enable()

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        trip = self._trip
        if trip is None or event != "call" or frame.f_code.co_filename[0] == "<":
            return
        called = _module_of(frame)
        if called is None:
            return
        caller = frame.f_back
        while caller is not None and _module_of(caller) is None:
            caller = caller.f_back
        name = None if caller is None else _module_of(caller)
        trip.note(name, called, frame.f_code.co_qualname)


def _module_of(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    return name if name.startswith("roxxel_") else None


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
    calls = Calls()
    with calls.watched():
        for name, job in jobs.items():
            job()
            with calls.recorded() as found[name]:
                job()
    return found


def main() -> None:
    """Print the trips."""
    with tempfile.TemporaryDirectory() as folder:
        for name, found in trips(Path(folder)).items():
            print(f"{name}: {found}")


if __name__ == "__main__":
    main()
