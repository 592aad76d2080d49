"""How the processes of a command begin, print, and report their end once.

A command that trains runs as one process, as one of a cluster's processes, or with
`--processes` as several processes that it starts on this machine.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from roxxel_store.command import Ended, drop_output, positive
from roxxel_store.screen import note, say

from roxxel.cli._arguments import AtLeast1

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

_PROCESSES, _DEVICES = "--processes", "--devices-per-process"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the processes of a command begin.

    Attributes:
        processes: Start N processes on this machine's CPU, to test the run; 1 means a
            single process under any launcher (default: as the launcher says).
        devices_per_process: Simulate M devices in each of the processes, on the CPU
            (default: 1).
        connect_timeout: Longest wait for the other processes, in seconds.
    """

    processes: AtLeast1 | None = None
    devices_per_process: Annotated[int | None, positive, "M"] = None
    connect_timeout: Annotated[int, positive, "S"] = 1800

    @property
    def starts_several(self) -> bool:
        """Whether the command starts its own processes."""
        return self.devices_per_process is not None or (self.processes or 1) > 1


def run_launched(
    launch: Launch, typed: Sequence[str], work: Callable[[], None]
) -> None:
    """Do the work of the command that was typed, in the processes of its launch."""
    if launch.starts_several:
        run_several(launch, typed)
        return
    connect(launch)
    with ended_once():
        work()


def run_several(launch: Launch, typed: Sequence[str]) -> None:
    """Run the command that was typed in several processes on this machine's CPU.

    Raises:
        SystemExit: A process failed or was stopped.
    """
    from roxxel_train import local

    command = [sys.executable, "-m", "roxxel", *_without_launch(typed)]
    code = local.run(command, launch.processes or 1, launch.devices_per_process or 1)
    if code:
        raise SystemExit(code)


def connect(launch: Launch) -> bool:
    """Connect the processes of a cluster; return whether this is the first.

    Only the first keeps its standard output. A program of one process is the first.
    """
    if launch.processes is not None:
        os.environ["JAX_NUM_PROCESSES"] = "1"
        return True
    from roxxel_ckpt.coordination import coordination_service
    from roxxel_train.distributed import initialize

    initialize(timeout_s=launch.connect_timeout)
    service = coordination_service()
    is_first = service is None or service.process_index == 0
    if not is_first:
        # JAX's libraries write to the descriptor and not to `sys.stdout`.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
    return is_first


@contextmanager
def ended_once() -> Generator[None]:
    """End without a message if the run's log, or the first process, says the reason."""
    import jax
    from roxxel_train import Preempted

    try:
        yield
    except SystemExit as end:
        # The log says how a preempted run ended. Other errors end all processes alike.
        is_said = isinstance(end, Preempted) or jax.process_index() != 0
        if is_said and isinstance(end.code, int):
            raise Ended(end.code) from None
        raise


def from_first(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return `show` in the first process; elsewhere a function that shows nothing."""
    from roxxel_ckpt.coordination import process_index

    return show if process_index() == 0 else lambda _: None


def tell(line: str) -> None:
    """Print a line of a run; the run continues if its standard output fails.

    `roxxel train run.toml 2>&1 | head` closes the output while the run trains.
    """
    try:
        say(line)
    except OSError as error:
        drop_output()
        with suppress(OSError):
            note(
                f"roxxel: standard output cannot be written ({error.strerror}); the "
                "run goes on, and system.log has its lines"
            )


def _without_launch(typed: Sequence[str]) -> Iterator[str]:
    arguments = iter(typed)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name not in {_PROCESSES, _DEVICES}:
            yield argument
        elif not equals:
            next(arguments, None)
