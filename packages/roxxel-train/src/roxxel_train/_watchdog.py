"""Says where a run hangs: all stacks, once a step has taken too long."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import jax

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


class Watchdog:
    """A thread that waits for steps, and speaks when one does not come.

    Each step that is late is reported once; the run itself is left alone.

    Args:
        hang_after_s: Seconds that a step may take; None watches nothing.
        say: Told the step and the stacks of all threads, on the watching thread.
        folder: Where a process that says nothing, any but the first, writes them.
    """

    def __init__(
        self,
        hang_after_s: float | None,
        say: Callable[[str], None],
        folder: Path | None = None,
    ) -> None:
        self._hang_after_s = hang_after_s
        self._say = say
        self._folder = folder
        self._change = threading.Condition()
        self._step = 0
        self._due_s: float | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._hang_after_s is not None:
            self._thread = threading.Thread(
                target=self._watch, name="roxxel-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._is_closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def begin(self, step: int) -> None:
        """Wait for step number `step` from now on."""
        self._step = step
        # Read by the other thread without a lock: a float is whole or not there.
        self._due_s = self._from_now()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Wait for nothing inside the block, and from its end on for the same step."""
        self._due_s = None
        try:
            yield
        finally:
            self._due_s = self._from_now()

    def _from_now(self) -> float | None:
        if self._hang_after_s is None:
            return None
        return time.monotonic() + self._hang_after_s

    def _report(self) -> None:
        text = (
            f"step {self._step} is not done after {self._hang_after_s:g} s; "
            f"this is where every thread of this process stands:\n{stacks()}"
        )
        self._say(text)
        process = jax.process_index()
        if process and self._folder is not None:
            path = self._folder / f"stacks-of-process-{process}.txt"
            path.write_text(text, encoding="utf-8")

    def _watch(self) -> None:
        longest_s = self._hang_after_s or 0.0
        with self._change:
            while not self._is_closed:
                due_s = self._due_s
                now = time.monotonic()
                if due_s is not None and now >= due_s:
                    self._due_s = None
                    self._report()
                    continue
                left_s = longest_s if due_s is None else due_s - now
                self._change.wait(min(left_s, threading.TIMEOUT_MAX))


def stacks() -> str:
    """Return the stack of every thread, the calling one left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = [
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented for this
        if ident != own
    ]
    return "\n".join(parts)
