"""Starts a program, so that Ctrl-C ends it with one line while it is imported too.

The imports of a program take its first second, and its package is imported before any
function in it can be called. So the programs whose packages import numpy begin here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roxxel_store.command import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable


def program(name: str) -> Callable[[], int]:
    """Return what imports the package of a program, and runs its `cli.main`.

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
