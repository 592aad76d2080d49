"""Parse values of the command line."""

from __future__ import annotations

import argparse


def span(text: str) -> tuple[int, int]:
    """Parse the half-open span `A:B`."""
    start, _, stop = text.partition(":")
    if start.isdecimal() and stop.isdecimal() and int(start) <= int(stop):
        return int(start), int(stop)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a span A:B with A up to B, such as 0:100"
    )
