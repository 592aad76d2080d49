"""Parse values of the command line, and show progress on a terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def span(text: str) -> tuple[int, int]:
    """Parse the half-open span `A:B`."""
    start, _, stop = text.partition(":")
    try:
        return int(start), int(stop)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span A:B") from None


def progress(what: str) -> Callable[[int, int], None] | None:
    """Return a function that shows progress in `what`; None without a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        share = 100 * done // max(1, total)
        sys.stderr.write(f"\r{share:3d} % of {total:,} {what}{end}")
        sys.stderr.flush()

    return show
