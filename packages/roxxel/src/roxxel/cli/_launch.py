"""How the processes of a command begin, and how they report their end once.

A command that trains runs as one process, as one of a cluster's processes, or with
`--processes` as several processes that it starts on this machine.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.command import Ended

from roxxel.cli._words import at_least_1

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Sequence

_PROCESSES, _DEVICES = "--processes", "--devices-per-process"


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _PROCESSES,
        type=at_least_1,
        metavar="N",
        help=(
            "start N processes on this machine's CPU, to test the run; 1 means a "
            "single process under any launcher (default: as the launcher says)"
        ),
    )
    parser.add_argument(
        _DEVICES,
        type=at_least_1,
        metavar="M",
        help="simulate M devices in each of the processes, on the CPU (default: 1)",
    )
    parser.add_argument(
        "--connect-timeout",
        type=at_least_1,
        default=1800,
        metavar="S",
        help="longest wait for the other processes, in seconds (default: 1800)",
    )


def starts_several(options: argparse.Namespace) -> bool:
    """Return whether a command starts its own processes."""
    return options.devices_per_process is not None or (options.processes or 1) > 1


def run_several(options: argparse.Namespace) -> None:
    """Run the command that was typed in several processes on this machine's CPU.

    Raises:
        SystemExit: A process failed or was stopped.
    """
    from roxxel_train import local

    command = [sys.executable, "-m", "roxxel", *_without_launch(options.typed)]
    code = local.run(command, options.processes or 1, options.devices_per_process or 1)
    if code:
        raise SystemExit(code)


def connect(options: argparse.Namespace) -> bool:
    """Connect the processes of a cluster; return whether this is the first.

    Only the first keeps its standard output. A program of one process is the first.
    """
    if options.processes is not None:
        os.environ["JAX_NUM_PROCESSES"] = "1"
        return True
    from roxxel_ckpt.coordination import coordination_service
    from roxxel_train.distributed import initialize

    initialize(timeout_s=options.connect_timeout)
    service = coordination_service()
    is_first = service is None or service.process_index == 0
    if not is_first:
        # JAX's libraries write to the descriptor and not to `sys.stdout`.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
    return is_first


@contextmanager
def ended_once() -> Generator[None]:
    """Report the block's error once: by the run's log, or by the first process."""
    import jax
    from roxxel_train import Preempted

    try:
        yield
    except SystemExit as end:
        is_said = isinstance(end, Preempted) or jax.process_index() != 0
        if is_said and isinstance(end.code, int):
            raise Ended(end.code) from None
        raise


def from_first(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return `show` in the first process; elsewhere a function that shows nothing."""
    from roxxel_ckpt.coordination import process_index

    return show if process_index() == 0 else lambda _: None


def _without_launch(typed: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, without those that start processes."""
    arguments = iter(typed)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name not in {_PROCESSES, _DEVICES}:
            yield argument
        elif not equals:
            next(arguments, None)
