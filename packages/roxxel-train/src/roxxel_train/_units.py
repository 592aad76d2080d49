"""Sizes in bytes, formatted for people."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def in_bytes(number: float) -> str:
    """Return a size with a binary unit.

    >>> in_bytes(3 * 2**20)
    '3.0 MiB'
    """
    exponent = 0
    while abs(number) >= 1024 and exponent < len(_UNITS):
        number /= 1024
        exponent += 1
    return (
        f"{number:,.1f} {_UNITS[exponent - 1]}" if exponent else f"{number:.0f} bytes"
    )
