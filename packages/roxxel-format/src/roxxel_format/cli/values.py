"""Parse values of the command line."""

from __future__ import annotations

import argparse


def span(text: str) -> tuple[int, int]:
    """Parse the half-open span `A:B`."""
    start, _, stop = text.partition(":")
    try:
        return int(start), int(stop)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a span A:B") from None
