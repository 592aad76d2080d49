"""Values on the command line: counts, sizes, spans and bytes."""

from __future__ import annotations

import argparse
import os
import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\\": b"\\"}


def positive(text: str) -> int:
    """Return an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer")
    return int(text)


def size(text: str) -> int:
    """Return a number of bytes, written plainly or with K, M, G or T."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write bytes, or a number with K, M, G or T"
        ) from None


def byte_string(text: str) -> bytes:
    """Return the bytes of a text in which a backslash stands before special ones."""
    parts = re.split(r"(\\x[0-9a-fA-F]{2}|\\.|\\)", text)
    result = b""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            result += os.fsencode(part)
        elif part.startswith("\\x") and len(part) == 4:
            result += bytes.fromhex(part[2:])
        elif part in _ESCAPES:
            result += _ESCAPES[part]
        else:
            raise argparse.ArgumentTypeError(
                rf"{text!r} holds {part}; write \n, \t, \r, \\ or \xNN"
            )
    return result


def span(text: str) -> tuple[int, int]:
    """Return the half-open span that `A:B` names."""
    start, _, stop = text.partition(":")
    try:
        return int(start), int(stop)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no span A:B") from None
