"""Run the units of a job that are not done, wherever it is, and show the progress.

A job writes a corpus, or searches one. Both divide their work into units, and a unit
that is done is never done again. A runner gets a picklable writer and the numbers of
the missing units. It calls `write_unit` for each number, in any order, in this process
or in others, and yields an outcome for each. A failed unit does not stop the others.
Neither does a worker that dies: its unit is written again.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import sys
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from roxxel_store.command import show_warning
from roxxel_store.files import is_full
from roxxel_store.screen import note, short_count, short_duration, short_size

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

UNIT_BYTES = 1 << 26
"""Minimum size of a unit, unless the caller chooses another. Smaller inputs are not
worth another process.
"""

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

_MOST_ALIKE = 8
"""The run ends when this many units have failed with one kind of error and none has
succeeded.
"""

_count, _size = partial(short_count, digits=3), partial(short_size, digits=3)


class UnitDone(NamedTuple):
    """What the progress counts of a unit that is done."""

    input_bytes: int
    num_documents: int
    num_tokens: int


class SizedUnit(Protocol):
    """A unit of a job; its text names its input in messages."""

    @property
    def num_bytes(self) -> int:
        """Size of its input."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all units of a preparation, or of one part.

    Attributes:
        num_units: All units.
        num_bytes: Size of all inputs.
        num_done: Units that are done, in this run or before.
        num_failed: Units that failed in this run.
        num_retries: How often units were started again after a worker or its node died.
        done_bytes: Size of the inputs of units that are done.
        num_documents: Documents of units that are done.
        num_tokens: Tokens of units that are done.
        new_bytes: Size of the inputs of units that this run has written.
        new_tokens: Tokens that this run has written.
        duration_s: Seconds since this run began to write.
        is_stopped: Whether this run writes no further units.

    Example:
        >>> print(Progress(num_units=9, num_bytes=8000, num_tokens=5))
        0 of 9 units, 0 B of 8 kB, 5 tokens, 0 documents
    """

    num_units: int
    num_bytes: int
    num_done: int = 0
    num_failed: int = 0
    num_retries: int = 0
    done_bytes: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    new_bytes: int = 0
    new_tokens: int = 0
    duration_s: float = 0.0
    is_stopped: bool = False

    @property
    def is_end(self) -> bool:
        """Whether every unit is done or failed, or this run stopped."""
        return self.is_stopped or self.num_done + self.num_failed == self.num_units

    def with_done(self, records: Sequence[UnitDone]) -> Progress:
        """Return the progress after units that were done before this run."""
        return replace(
            self,
            num_done=self.num_done + len(records),
            done_bytes=self.done_bytes + sum(each.input_bytes for each in records),
            num_documents=self.num_documents
            + sum(each.num_documents for each in records),
            num_tokens=self.num_tokens + sum(each.num_tokens for each in records),
        )

    def with_new(self, record: UnitDone, duration_s: float) -> Progress:
        """Return the progress after a unit that this run has written."""
        return replace(
            self.with_done([record]),
            new_bytes=self.new_bytes + record.input_bytes,
            new_tokens=self.new_tokens + record.num_tokens,
            duration_s=duration_s,
        )

    def __str__(self) -> str:
        # A terminal cuts the end of the line.
        parts = [f"{self.num_done} of {self.num_units} units"]
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        if self.num_retries:
            ending = "y" if self.num_retries == 1 else "ies"
            parts.append(f"{self.num_retries} retr{ending}")
        has_rate = self.new_bytes and self.duration_s
        if has_rate:
            left_bytes = self.num_bytes - self.done_bytes
            left = short_duration(left_bytes * self.duration_s / self.new_bytes)
            end = "stopped" if self.is_stopped else "done"
            parts.append(end if self.is_end else f"{left} left")
        parts.append(f"{_size(self.done_bytes)} of {_size(self.num_bytes)}")
        if has_rate:
            rate = round(self.new_tokens / self.duration_s)
            parts.append(f"{_count(rate)} tokens/s")
        parts.append(f"{_count(self.num_tokens)} tokens")
        parts.append(f"{_count(self.num_documents)} documents")
        return ", ".join(parts)


def run_units(
    what: str,
    units: Sequence[SizedUnit],
    numbers: Sequence[int],
    done: Mapping[int, UnitDone],
    writer: Writer,
    runner: Runner | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Do the units that are not done; raise the error of the first unit that failed.

    Args:
        what: The corpus, for messages.
        units: All units of the job.
        numbers: The units to do.
        done: What the units count that are done.
        writer: Does a unit, in any process.
        runner: Runs the writer. Default: processes, one per core, or per 64 MiB of all
            units if that is fewer.
        progress: Called before the first unit, and when a unit ends.
    """
    runner = runner or _processes_for(units)
    missing = [number for number in numbers if number not in done]
    if done:
        note(f"{what}: {len(done)} of {len(numbers)} units are done already")
    state = Progress(len(numbers), sum(units[at].num_bytes for at in numbers))
    state = state.with_done([*done.values()])
    if progress is not None:
        progress(state)
    errors: dict[int, Exception] = {}
    began = time.perf_counter()
    with contextlib.closing(runner.run(writer, missing)) as outcomes:
        for outcome in outcomes:
            elapsed = time.perf_counter() - began
            if outcome.record is not None:
                state = state.with_new(outcome.record, elapsed)
            elif outcome.error is not None:
                unit = units[outcome.number]
                errors[outcome.number] = _naming(unit, outcome.error)
                state = replace(state, num_failed=len(errors), duration_s=elapsed)
                # Every later unit would fail too, after it is tokenized.
                stops = is_full(outcome.error) or _are_alike(errors, state)
                state = replace(state, is_stopped=stops)
            else:
                retries = state.num_retries + 1
                state = replace(state, num_retries=retries, duration_s=elapsed)
            if progress is not None:
                progress(state)
            if state.is_stopped:
                break
    if not errors:
        return
    if len(units) > 1:
        note(f"{what}: {_failure(state)}")
    raise errors[min(errors)]


def _processes_for(units: Sequence[SizedUnit]) -> ProcessRunner:
    num_bytes = sum(each.num_bytes for each in units)
    return ProcessRunner(max(1, min(num_cores(), num_bytes // UNIT_BYTES)))


def _naming(unit: SizedUnit, error: Exception) -> Exception:
    """Return the error of a unit; if a worker died, add the names of the unit's inputs.

    All other errors name their input already.
    """
    if not isinstance(error, ChildProcessError):
        return error
    named = ChildProcessError(f"{unit}: {error}")
    named.__cause__ = error.__cause__
    return named


def _are_alike(errors: Mapping[int, Exception], state: Progress) -> bool:
    """Return whether units fail alike and none succeeds, as the others would too."""
    kinds = {type(error) for error in errors.values()}
    return len(errors) >= _MOST_ALIKE and len(kinds) == 1 and not state.num_done


def _failure(state: Progress) -> str:
    """Describe how many units failed, and which results are kept."""
    failed = f"{state.num_failed} of {state.num_units} units failed"
    if state.is_stopped:
        return f"{failed} and stopped the others; {state.num_done} are done and kept"
    return f"{failed}; the other {state.num_done} are kept"


class Writer(Protocol):
    """Writes units; can be pickled."""

    def write_unit(self, number: int, /) -> UnitDone:
        """Write a unit unless it is done, and return what it counts."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit counts that is done, or the error that stopped the unit.

    Both are None if a worker died: its units are written again.
    """

    number: int
    record: UnitDone | None
    error: Exception | None = None


class Runner(Protocol):
    """Writes units, for example in several processes."""

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units; yield an outcome when a unit ends or is retried.

        `close` ends the run: units that did not begin are not written.
        """
        ...


@dataclass(frozen=True)
class ProcessRunner:
    """Writes units in this process, or in `workers` processes of this machine."""

    workers: int = 1

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units; yield an outcome when a unit ends or is retried.

        If one process dies, for example for lack of memory, Python ends the others. New
        processes then write the missing units; if no unit had ended, half as many
        processes are started. If a single process dies in its first unit, this unit has
        failed.

        Raises:
            TypeError: The writer holds an object that another process cannot load.
        """
        if self.workers == 1 or len(numbers) < 2:
            yield from (outcome_of(writer, number) for number in numbers)
            return
        pickled = _pickled(writer)
        missing: list[int] = [*numbers]
        workers = self.workers
        while missing:
            ended: set[int] = set()
            death: BaseException | None = None
            try:
                with contextlib.closing(_pooled(pickled, missing, workers)) as outcomes:
                    for outcome in outcomes:
                        ended.add(outcome.number)
                        yield outcome
            except BrokenProcessPool as error:
                death = error
            missing = [number for number in missing if number not in ended]
            if not missing:
                return
            # Units that may have been in progress come last: one in each process, and
            # one that the pool keeps ready.
            begun = 1 if workers == 1 else workers + 1
            last, missing = missing[:begun], missing[begun:]
            if workers == 1 and not ended:
                yield Outcome(last[0], None, _death(last[0], death))
                continue
            if not ended:
                workers //= 2
            missing += last
            yield Outcome(last[0], None)


def num_cores() -> int:
    """Return how many cores this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # Linux alone has it.
    return len(usable(0)) if usable else os.cpu_count() or 1


def _death(unit: int, cause: BaseException | None) -> ChildProcessError:
    error = ChildProcessError(
        f"a worker process ended early in unit {unit}, perhaps for lack of memory; "
        "write again with fewer workers, which keeps the finished units"
    )
    error.__cause__ = cause
    return error


def _pickled(writer: Writer) -> bytes:
    """Pickle a writer for processes that do not import the program.

    Raises:
        TypeError: It holds an object that cannot be pickled, such as the user's
            tokenizer, or an object whose class is defined in the program.
    """
    try:
        pickled = pickle.dumps(writer)
        _WithoutMain(io.BytesIO(pickled)).load()
    except (AttributeError, pickle.PickleError, TypeError) as error:
        raise TypeError(
            f"the worker processes cannot load what they need ({error}); pass the "
            "tokenizer by its path or name, define its class in a module and not in "
            "the program, or pass workers=1"
        ) from error
    return pickled


class _WithoutMain(pickle.Unpickler):
    """Refuses objects whose class or function is defined in the program."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "__main__":
            raise pickle.UnpicklingError(f"{global_name} is defined in the program")
        return super().find_class(module_name, global_name)


class _Main(ModuleType):
    """The module `__main__` without its file.

    A new process imports the file of its parent's `__main__`. Then a program without a
    main guard would write the corpus again in each worker. And a program from the
    standard input has no file at all.
    """

    def __init__(self, main: ModuleType) -> None:
        super().__init__("__main__")
        self._main = main

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._main, name)


_starting = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Generator[None]:
    """Meanwhile, let new processes import nothing of the program."""
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = _Main(main)
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _pooled(pickled: bytes, numbers: Sequence[int], workers: int) -> Generator[Outcome]:
    """Write units in new processes; raise BrokenProcessPool if one died."""
    # The parent may have threads, so a forked child could deadlock.
    pool = ProcessPoolExecutor(
        min(workers, len(numbers)),
        multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
        initargs=(pickled, warnings.showwarning is show_warning),
    )
    broken: BaseException | None = None
    try:
        with _without_main():  # The pool starts a process when it gets its work.
            futures = [pool.submit(_work, number) for number in numbers]
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                broken = error  # Outcomes of units that ended before may follow.
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


def _begin_worker(pickled: bytes, is_of_command: bool) -> None:
    global _writer  # noqa: PLW0603 - one per process, set when the process begins
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # One process per core: the threads of a tokenizer would compete for the cores.
    os.environ.update(ONE_THREAD)
    if is_of_command:
        warnings.showwarning = show_warning
    _writer = pickle.loads(pickled)  # noqa: S301 - the parent process pickled it


def _end_with_parent() -> None:
    """End this process when the parent has ended, even if the parent was killed.

    Without this a worker would wait for ever: the pipe that brings its work does not
    close with the parent, because the other workers have it open too.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(number: int) -> Outcome:
    assert _writer is not None  # noqa: S101 - set when the process began
    return outcome_of(_writer, number)
