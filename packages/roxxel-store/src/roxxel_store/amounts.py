"""How every command writes a large number or a duration."""

from __future__ import annotations

_UNITS = (
    *(("E", 10**18), ("P", 10**15), ("T", 10**12)),
    *(("G", 10**9), ("M", 10**6), ("k", 10**3)),
)


_SHORT_FROM = 10_000
"""Smaller counts are told only in full."""


def short_count(number: int, digits: int = 4) -> str:
    """Return a count as text, with a unit and at most `digits` digits.

    Example:
        >>> short_count(1_852_000), short_count(999_900, digits=3), short_count(717)
        ('1.852 M', '1 M', '717')
    """
    for unit, size in _UNITS:
        # A number that rounds to 1000 of a unit is 1 of the next.
        if number >= size * (1 - 0.5 / 10**digits):
            return f"{number / size:.{digits}g} {unit}"
    return str(number)


def whole_count(number: int) -> str:
    """Return a count in full, after its short form if it is long.

    Example:
        >>> whole_count(8795), whole_count(11_936_011)
        ('8,795', '11.94 M (11,936,011)')
    """
    if number < _SHORT_FROM:
        return f"{number:,}"
    return f"{short_count(number)} ({number:,})"


def short_size(num_bytes: int, digits: int = 4) -> str:
    """Return a number of bytes as text, with a unit and at most `digits` digits.

    Example:
        >>> short_size(2_700), short_size(717)
        ('2.7 kB', '717 B')
    """
    count = short_count(num_bytes, digits)
    return f"{count}B" if " " in count else f"{count} B"


def short_duration(seconds: float) -> str:
    """Return a duration with two or three digits and a unit.

    Example:
        >>> short_duration(22_320), short_duration(1_690), short_duration(4.25)
        ('6.2 h', '28 min', '4.2 s')
    """
    units = (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")
    size, unit = next((u for u in units if seconds >= 2 * u[0]), units[-1])
    number = seconds / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
