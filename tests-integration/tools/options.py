"""Lists every command of every program, with its options.

    python tests-integration/tools/options.py

prints one row for each command, and the sums. An option that several commands of a
program share by one type has one text of help, and counts once for this program.
`--help` and `--version` do not count.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from roxxel.cli import parsers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command as a user types it, with the parser of its arguments."""
    for name, parser in parsers():
        every: list[Any] = [each.choices for each in actions_of(parser)]
        inner = dict(
            chain.from_iterable(c.items() for c in every if isinstance(c, dict))
        )
        yield from ((f"{name} {word}", each) for word, each in inner.items())
        if not inner:
            yield name, parser


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the options of a command, with their help."""
    return {
        each.option_strings[-1]: str(each.help)
        for each in actions_of(parser)
        if each.option_strings and each.dest not in {"help", "version"}
    }


def program_of(command: str) -> str:
    """Return the program that has a command: its package may be installed alone."""
    words = command.split()
    if words[1] in {"write", "scan"}:
        return "roxxel-prepare"
    return f"roxxel-{words[1]}" if len(words) > 2 else "roxxel"


def counted() -> tuple[int, int]:
    """Return the numbers of commands, and of options of all programs."""
    every = [(program_of(name), options_of(parser)) for name, parser in commands()]
    distinct = {(program, *each) for program, found in every for each in found.items()}
    return len(every), len(distinct)


def main() -> None:
    num_shown = 0
    for name, parser in commands():
        found = options_of(parser)
        num_shown += len(found)
        print(f"{name:22} {len(found):>3}  {' '.join(found)}")
    num_commands, num_options = counted()
    print(
        f"{num_commands} commands; {num_options} options, of which a shared one counts "
        f"once for each program; {num_shown} on all pages of help"
    )


if __name__ == "__main__":
    main()
