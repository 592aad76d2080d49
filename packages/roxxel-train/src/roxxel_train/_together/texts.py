"""Texts about processes, threads and errors, for messages and standard error."""

from __future__ import annotations

import sys
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from roxxel_store.screen import note

if TYPE_CHECKING:
    from collections.abc import Sequence


def named(indices: Sequence[int]) -> str:
    """Return the names of processes for a message, such as `processes 0, 3`."""
    listed = ", ".join(map(str, indices[:10])) + (", ..." if len(indices) > 10 else "")
    return f"process{'es' if len(indices) > 1 else ''} {listed}"


def titled(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def stacks() -> str:
    """Return the stack of every thread except the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = [
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented for this
        if ident != own
    ]
    return "\n".join(parts)


def print_error(text: str) -> None:
    """Write a text to standard error, if the program has one."""
    with suppress(Exception):
        note(text)
