"""The `roxxel-format` command: inspect, verify, copy, compact, adopt, repair and clean.

An error is one sentence on the standard error. `roxxel_store.command.EXIT_CODES` says
what the exit codes mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.command import EXPECTED, interruptible, spelled

from roxxel_format.cli import reading, writing
from roxxel_format.cli.arguments import parser

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
    return parser(prog).run(_COMMANDS, arguments, EXPECTED, spelled)


_COMMANDS = {
    "info": reading.info,
    "verify": reading.verify,
    "cat": reading.cat,
    "export": reading.export,
    "copy": writing.copy,
    "compact": writing.compact,
    "adopt": writing.adopt,
    "repair": writing.repair,
    "clean": writing.clean,
}
