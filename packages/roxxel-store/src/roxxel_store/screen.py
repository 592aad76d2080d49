"""What the commands print: the one place where text reaches a terminal.

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
