"""Python's garbage, collected after the same steps in all processes of a run.

Python collects at any time, so with hundreds of processes some collect at each step,
and the others wait for them. After the first collection, later ones leave out
everything that then exists, mostly imported modules and compiled programs. On two cores
this shortens a full collection from 200 ms to 0.3 ms, so every collection is a full
one: objects that survived one are never looked at in a partial collection.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Garbage:
    """Collects after each multiple of `every` steps; with None, Python decides."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._is_frozen = False  # until the first collection

    @contextmanager
    def kept(self) -> Generator[None]:
        """During a block, keep Python from collecting by itself."""
        if self._every is None:
            yield
            return
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if self._is_frozen:
                gc.unfreeze()
            # Inside an evaluation of another run, collection was off and stays off.
            if was_enabled:
                gc.enable()

    def collect_at(self, step: int, report: Callable[[float], None]) -> None:
        """Collect garbage if this is due after `step`; `report` gets the seconds."""
        if self._every is None or step % self._every:
            return
        start_s = time.perf_counter()
        gc.collect()
        if not self._is_frozen:
            self._is_frozen = True
            gc.freeze()
        report(time.perf_counter() - start_s)
