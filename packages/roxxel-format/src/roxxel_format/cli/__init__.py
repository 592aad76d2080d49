"""The `roxxel-format` command: info, verify, cat, copy and clean.

An error is one sentence on the standard error. `roxxel_store.command.EXIT_CODES` says
what the exit codes mean.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roxxel_store.command import EXPECTED, CommandParser, interruptible

from roxxel_format.cli.reading import cat, info, verify
from roxxel_format.cli.writing import clean, copy

if TYPE_CHECKING:
    from collections.abc import Sequence


@interruptible("roxxel-format")
def main(arguments: Sequence[str] | None = None, *, prog: str = "roxxel-format") -> int:
    """Run the command.

    Args:
        arguments: Arguments after the command's name. Default: `sys.argv[1:]`.
        prog: Name of the command in usage and error messages.

    Returns:
        The exit code.
    """
    found = parser(prog)
    return found.run(found.acts, arguments, EXPECTED)


def parser(prog: str) -> CommandParser:
    """Return the parser, which calls the function of a command."""
    verifying, printing = partial(verify, prog=prog), partial(cat, prog=prog)
    return CommandParser.of(
        [info, verifying, printing, copy, clean],
        "roxxel-format",
        prog=prog,
        description="Inspect, check, copy and repair corpora of .rox shards.\n\n"
        "`roxxel write` (without roxxel: `roxxel-prepare write`) makes corpora of "
        "files.",
    )
