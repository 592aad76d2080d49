"""Starts a program, so that Ctrl-C ends it with one line even during its imports.

The imports take the first second of a program, before any function of its package can
run. So programs whose packages import numpy begin here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roxxel_store.command import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable


def program(name: str) -> Callable[[], int]:
    """Return a function that imports a program's package and runs its `cli.main`.

    Example:
        >>> run = program("roxxel-format")
    """

    @interruptible(name)
    def run() -> int:
        module: Any = import_module(f"{name.replace('-', '_')}.cli")
        return module.main()

    return run


roxxel_ckpt = program("roxxel-ckpt")
roxxel_format = program("roxxel-format")
roxxel_prepare = program("roxxel-prepare")
