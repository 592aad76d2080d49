"""The commands that write and read corpora, as tests call them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from roxxel_format import cli as format_cli
from roxxel_prepare import cli as prepare_cli

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITERS = ("write", "scan")


def main(arguments: Sequence[str], *, prog: str = "roxxel-prepare") -> int:
    """Run a command of `roxxel-prepare`, or else of `roxxel-format`."""
    cli = prepare_cli if arguments[0] in WRITERS else format_cli
    return cli.main(arguments, prog=prog)


def spans_in(said: str) -> list[list[int]]:
    """Return the parts of files that `write --dry-run` has printed."""
    found = re.findall(r"\[(\d+):(\d+)\]$", said, re.MULTILINE)
    return [[int(each) for each in span] for span in found]
