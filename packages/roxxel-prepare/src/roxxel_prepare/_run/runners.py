"""Run the units of a preparation: in this process, or in processes of this machine.

A runner gets a picklable writer and the numbers of the missing units. It calls
`write_unit` for each number, in any order, anywhere, and yields an outcome for each. A
failed unit does not stop the others. Neither does a worker that dies: its unit is
written again.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from roxxel_store.command import show_warning

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


class Writer(Protocol):
    """Writes units; can be pickled."""

    def write_unit(self, number: int, /) -> object:
        """Write a unit unless it is done, and return what it counts."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit counts that is done, or the error that stopped the unit.

    Both are None if a worker died: its units are written again.
    """

    number: int
    record: Any
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
