"""Run the units of a preparation: in this process, or in processes of this machine.

A runner gets a picklable writer and the numbers of the missing units. It calls
`write_unit` for each number, in any order, anywhere, and yields an outcome for each. A
unit that fails does not stop the others, and neither does a worker that dies: its unit
is written again.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_format._prepare.plan import UnitRecord

_MOST_VAIN = 2

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


class Writer(Protocol):
    """Writes units; can be pickled."""

    def write_unit(self, number: int, /) -> UnitRecord:
        """Write a unit unless it is done, and return its record."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of a unit that is done, or the error that stopped the unit.

    Neither if a worker died, and its units are written again.
    """

    number: int
    record: UnitRecord | None
    error: Exception | None = None


class Runner(Protocol):
    """Where units are written."""

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Iterator[Outcome]:
        """Write units, and yield their outcomes as the units end, and retries."""
        ...


@dataclass(frozen=True)
class ProcessRunner:
    """Writes units in this process, or in `workers` processes of this machine."""

    workers: int = 1

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Iterator[Outcome]:
        """Write units, and yield their outcomes as the units end, and retries.

        The death of one process, for example for lack of memory, ends all processes. So
        new processes write the missing units, as long as some units end.

        Raises:
            ChildProcessError: Processes died twice before any unit ended.
        """
        if self.workers == 1 or len(numbers) < 2:
            yield from (outcome_of(writer, number) for number in numbers)
            return
        missing, num_vain = [*numbers], 0
        while missing:
            ended: set[int] = set()
            try:
                for outcome in self._pooled(writer, missing):
                    ended.add(outcome.number)
                    yield outcome
            except BrokenProcessPool as error:
                num_vain = 0 if ended else num_vain + 1
                if num_vain == _MOST_VAIN:
                    raise ChildProcessError(
                        "a worker process ended early, perhaps for lack of memory; "
                        "write again with fewer workers, which keeps the finished units"
                    ) from error
            missing = [number for number in missing if number not in ended]
            if missing:
                # One of the first made its process die, so it comes last.
                begun = self.workers + 1
                missing = missing[begun:] + missing[:begun]
                yield Outcome(missing[-1], None)

    def _pooled(self, writer: Writer, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Write units in new processes; raise BrokenProcessPool if one died."""
        # The parent may have threads, so a forked child could deadlock.
        pool = ProcessPoolExecutor(
            min(self.workers, len(numbers)),
            multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(writer,),
        )
        broken: BaseException | None = None
        try:
            for future in as_completed(
                [pool.submit(_work, number) for number in numbers]
            ):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    broken = error  # Units that ended before may follow.
                else:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        if broken is not None:
            raise broken


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
