"""Parse values of the command line, and show progress."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING

from roxxel_format.writing import Separator
from roxxel_store.command import as_text
from roxxel_store.screen import draw, note, printable

from roxxel_prepare._inputs.formats import FORMATS
from roxxel_prepare._run.files import checked_buckets, checked_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_format import WriteSummary

    from roxxel_prepare._run.runners import Progress

_EVERY_S = 60.0
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\\": b"\\"}


def part(text: str) -> tuple[int, int]:
    """Parse the part `I/N`, with I from 0."""
    first, _, count = text.partition("/")
    if first.isdecimal() and count.isdecimal() and int(first) < int(count):
        return int(first), int(count)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a part I/N with I from 0 to N - 1, such as 0/8"
    )


def lengths(text: str) -> list[int]:
    """Parse lengths `513,1025,4097`, which ascend."""
    parts = [each.strip() for each in text.split(",")]
    if all(each.isdecimal() for each in parts):
        with contextlib.suppress(ValueError):
            return checked_buckets([int(each) for each in parts])
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a list of lengths that ascend, such as 513,1025,4097"
    )


def names(text: str) -> list[str]:
    """Parse names `id,url`."""
    return [each.strip() for each in as_text(text).split(",") if each.strip()]


def split(text: str) -> tuple[str, float]:
    """Parse a split `NAME=SHARE`, such as `valid=0.001`."""
    name, _, number = as_text(text).partition("=")
    with contextlib.suppress(ValueError):
        return checked_split((name, number))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not NAME=SHARE with a share between 0 and 1, such as valid=0.001"
    )


def input_format(text: str) -> str:
    """Parse the name of a format of input files."""
    if text in FORMATS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(FORMATS)}")


def template(text: str) -> str | bool:
    """Parse the path of a chat template; True is `auto`."""
    return True if text == "auto" else text


def separator(text: str) -> int | str | bytes | None:
    """Parse a token id, the name of a token, `none`, or `text:` and a text."""
    start, is_text, spelled = text.partition("text:")
    return _byte_string(spelled) if is_text and not start else Separator.parse(text)


def _byte_string(text: str) -> bytes:
    r"""Parse a text with the escapes \n, \t, \r, \\ and \xNN."""
    if not text:
        raise argparse.ArgumentTypeError(
            "text: without a text separates nothing; write none, or a text behind it"
        )
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
                rf"text:{text} holds {part}; write \n, \t, \r, \\ or \xNN"
            )
    return result


def status_line() -> Callable[[Progress], None]:
    """Return a function that shows a state on the standard error.

    On a terminal, each state is cut to one line and replaces the previous state.
    Elsewhere, a state is printed as a line, at most one in a minute; if the work ends
    before the first minute does, no line is printed.
    """
    is_terminal = sys.stderr.isatty()
    shown_s = time.monotonic()

    def show(status: Progress) -> None:
        nonlocal shown_s
        if is_terminal:
            # Erase to the end of the line: the state before may have been longer.
            end = "\n" if status.is_end else ""
            width = shutil.get_terminal_size().columns
            text = printable(str(status))[: width - 1]
            draw(f"\r{text}\x1b[K{end}")
        elif time.monotonic() - shown_s >= _EVERY_S:
            shown_s = time.monotonic()
            note(str(status))

    return show


def shares_line(pairs: Iterable[tuple[WriteSummary, WriteSummary]]) -> str:
    """Describe which shares of the documents and of the tokens are held out.

    The two differ, because a few long documents have many tokens.

    Args:
        pairs: Summaries of held-out documents, and of the others.
    """
    held_out, others = zip(*pairs, strict=True)

    def percent(name: str) -> str:
        mine, all_others = (
            sum(getattr(each, name) for each in side) for side in (held_out, others)
        )
        return f"{100 * mine / max(1, mine + all_others):.3g} %"

    return (
        f"held out {percent('num_documents')} of the documents and "
        f"{percent('num_tokens')} of the tokens"
    )
