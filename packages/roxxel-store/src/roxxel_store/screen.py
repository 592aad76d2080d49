"""What the commands show: amounts, tables, and all text that reaches a terminal.

Documents, names and files may come from a stranger. A terminal obeys control characters
in them: some set its title, clipboard or colours, others move text so that a line seems
to say something else. Print with `say` and `note`, which escape them. Only our own bars
and status lines go to a stream directly, and their text passes through `printable`.
"""

from __future__ import annotations

import re
import sys
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

_UNITS = (
    *(("E", 10**18), ("P", 10**15), ("T", 10**12)),
    *(("G", 10**9), ("M", 10**6), ("k", 10**3)),
)
_SHORT_FROM = 10_000
"""Smaller counts are told only in full."""

_LAYOUT = "\n\t"
"""Control characters with which our own lines are laid out."""

_CONTROLS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: ESC, BEL, CSI and the like
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029"  # ends of lines and paragraphs
    "\u206a-\u206f\ufff9-\ufffb"  # deprecated formats, interlinear annotations
    "\ud800-\udfff"  # surrogates, which no encoding can print
    "\U000e0000-\U000e007f"  # invisible tags
    "]"
)
"""Joiners, variation selectors and other invisible characters of scripts are not in it:
Persian, Hindi and emoji need them.
"""


def printable(text: str, keep: str = "") -> str:
    r"""Return a text in which no character can control a terminal.

    Each such character becomes its escape in Python, such as `\x1b`. Any other text
    stays as it is, text that is already escaped included. A text that spells out an
    escape then looks like the escape itself; only `--json` tells the two apart.

    Args:
        text: Any text.
        keep: Control characters that stay, such as the ends of lines.

    Example:
        >>> print(printable("a\x1b[2J\u202eb"))
        a\x1b[2J\u202eb
    """
    return _CONTROLS.sub(
        lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text
    )


def shown(text: str) -> str:
    r"""Return lines for a terminal: `printable`, but line ends and tabs stay.

    Example:
        >>> shown("one\n\ttwo\r")
        'one\n\ttwo\\r'
    """
    return printable(text, _LAYOUT)


def in_html(text: str) -> str:
    r"""Return lines for a page; direction marks are escaped too, because they mislead.

    Example:
        >>> in_html("<b>\x1b")
        '&lt;b&gt;\\x1b'
    """
    return escape(shown(text))


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
        >>> counted(1, "row"), counted(2_000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return the rows of a table as lines.

    Args:
        rows: The cells of each row, the same number in all; the first row is the heads.
        right: The columns whose cells end at the right, such as numbers.

    Example:
        >>> aligned([("run", "step"), ("first", "12")], right=[1])
        ['run    step', 'first    12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def say(text: str = "", *, end: str = "\n") -> None:
    """Print lines to standard output, and flush it.

    Without the flush, later log lines on standard error could appear first.

    Example:
        >>> say("wrote web.rox")
        wrote web.rox
    """
    sys.stdout.write(shown(text) + end)
    sys.stdout.flush()


def note(text: str, *, end: str = "\n") -> None:
    """Print lines to standard error, which keeps them apart from output for programs.

    Example:
        >>> note("web.rox: is empty")
    """
    sys.stderr.write(shown(text) + end)
    sys.stderr.flush()


def put(content: bytes) -> None:
    """Write the content of documents to standard output.

    A file or another program gets it unchanged; a terminal gets what `say` prints.

    Example:
        >>> put(b"a document")  # doctest: +SKIP
        a document
    """
    if sys.stdout.isatty():
        say(content.decode(errors="replace"), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def draw(text: str) -> None:
    r"""Write a status line with its control characters to standard error.

    Pass its text through `printable` first.

    Example:
        >>> draw("\rreading web.rox: 7%\x1b[K")
    """
    sys.stderr.write(text)
    sys.stderr.flush()
