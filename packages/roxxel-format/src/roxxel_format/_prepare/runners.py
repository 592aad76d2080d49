"""Run the units of a preparation: in this process, or in processes of this machine.

A runner gets a picklable writer and the numbers of the missing units. It calls
`write_unit` for each number, in any order, anywhere, and yields an outcome for each. A
unit that fails does not stop the others.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from roxxel_format._prepare.plan import UnitRecord

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


class Writer(Protocol):
    """Writes units; can be pickled."""

    def write_unit(self, number: int, /) -> UnitRecord:
        """Write a unit unless it is done, and return its record."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of a unit that is done, or the error that stopped the unit."""

    number: int
    record: UnitRecord | None
    error: Exception | None = None


class Runner(Protocol):
    """Where units are written."""

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units, and yield their outcomes as the units end.

        `close` ends the run: units that did not begin are not written.
        """
        ...


@dataclass(frozen=True)
class ProcessRunner:
    """Writes units in this process, or in `workers` processes of this machine."""

    workers: int = 1

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units, and yield their outcomes as the units end."""
        if self.workers == 1 or len(numbers) < 2:
            yield from (outcome_of(writer, number) for number in numbers)
            return
        # The parent may have threads, so a forked child could deadlock.
        pool = ProcessPoolExecutor(
            min(self.workers, len(numbers)),
            multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(writer,),
        )
        try:
            for future in as_completed(
                [pool.submit(_work, number) for number in numbers]
            ):
                yield future.result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process ended early, perhaps for lack of memory; write again "
                "with fewer workers, which keeps the finished units"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def outcome_of(writer: Writer, number: int) -> Outcome:
    """Write a unit, and return its outcome."""
    try:
        return Outcome(number, writer.write_unit(number))
    except Exception as error:  # noqa: BLE001 - raised when all units have ended
        return Outcome(number, None, error)


_writer: Writer | None = None
"""The writer of a worker process, so that a tokenizer is loaded once."""


def _begin_worker(writer: Writer) -> None:
    global _writer  # noqa: PLW0603 - one a process, set when the process begins
    # One process per core: the threads of a tokenizer would compete for the cores.
    os.environ.update(ONE_THREAD)
    _writer = writer


def _work(number: int) -> Outcome:
    assert _writer is not None  # noqa: S101 - set when the process began
    return outcome_of(_writer, number)
