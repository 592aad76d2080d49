"""Standard output and standard error that accept every text."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Make both streams usable; call this function first in a command.

    A daemon may start a program without standard output (`>&-`): the text then goes
    nowhere, and no file that the program opens takes the place of the stream. A
    character that the encoding of a stream lacks is printed as its escape.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` returns the lowest free descriptor, which is this one.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the program ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Send what is still written to standard output nowhere, after an error of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
