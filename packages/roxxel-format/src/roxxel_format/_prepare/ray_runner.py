"""Run the units of a preparation as tasks of Ray, on one machine or a cluster.

A unit is one task of one core. Ray runs a task again if its worker or node died, which
is safe: a unit that is written twice has the same shards.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._prepare.runners import ONE_THREAD, Outcome, Writer, outcome_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

# Units that Ray knows of at a time: enough to keep a thousand cores busy.
_IN_FLIGHT = 2000
_RETRIES = 3


@dataclass(frozen=True)
class RayRunner:
    """Writes units as tasks of Ray; needs the extra `ray`.

    Every node needs this package, the inputs and the corpus under the same paths, or in
    buckets.

    Args:
        address: The cluster, as for `ray.init`. None: `RAY_ADDRESS`, else a cluster
            that runs on this machine, else a new one.
    """

    address: str | None = None

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units, and yield their outcomes as the units end.

        Raises:
            ConnectionError: There is no cluster at the address.
            ModuleNotFoundError: Ray is not installed.
        """
        if not numbers:
            return
        ray = self._connected()
        try:
            yield from _outcomes(ray, writer, numbers)
        finally:
            ray.shutdown()

    def _connected(self) -> Any:
        """Import Ray and connect to the cluster."""
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                '--ray needs ray: pip install "roxxel-format[ray]"', name="ray"
            ) from error
        try:
            ray.init(self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise ConnectionError(
                f"--ray {self.address or ''}: no cluster of Ray answers ({reason}); "
                "check the address, or start one with `ray start --head`"
            ) from error
        return ray


def _outcomes(ray: Any, writer: Writer, numbers: Sequence[int]) -> Generator[Outcome]:
    # A list keeps Ray from loading the writer again for each task.
    shared = [ray.put(writer)]
    work = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
    folder = str(Path.cwd())
    waiting = iter(numbers)
    tasks: dict[Any, int] = {}
    try:
        while True:
            for number in islice(waiting, _IN_FLIGHT - len(tasks)):
                tasks[work.remote(shared, folder, number)] = number
            if not tasks:
                return
            done, _ = ray.wait(list(tasks), num_returns=1)
            for task in done:
                yield _outcome(ray, task, tasks.pop(task))
    finally:
        for task in tasks:
            ray.cancel(task, force=True)


def _outcome(ray: Any, task: Any, number: int) -> Outcome:
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        problem = ChildProcessError(
            f"the task of unit {number} ended early {_RETRIES + 1} times "
            f"({type(error).__name__}), perhaps for lack of memory; write again, which "
            "keeps the finished units"
        )
        problem.__cause__ = error
        return Outcome(number, None, problem)


_writers: dict[Any, Writer] = {}
"""The writer of a worker, by its reference, so that a tokenizer is loaded once."""


def _work(shared: list[Any], folder: str, number: int) -> Outcome:
    """Write a unit in a worker of Ray, which belongs to this preparation alone."""
    [reference] = shared
    if reference not in _writers:
        # Inputs may be relative to the folder of the driver.
        with contextlib.suppress(OSError):  # A missing input is a better error.
            os.chdir(folder)
        os.environ.update(ONE_THREAD)
        ray: Any = importlib.import_module("ray")
        _writers[reference] = ray.get(reference)
    return outcome_of(_writers[reference], number)
