"""Run the units of a preparation as tasks of Ray, on one machine or a cluster.

Each unit is a task that uses one core. If a worker or its node dies, its task runs
again. This is safe, because writing a unit twice gives the same shards. This module,
not Ray, starts such a task again, so that retries can be counted.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra
from roxxel_store.errors import reason_of

from roxxel_prepare._run.runners import ONE_THREAD, Outcome, Writer, outcome_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

# Maximum number of tasks in Ray at a time: enough to keep a thousand cores busy.
_IN_FLIGHT = 2000
_RETRIES = 3
_HOST_AND_PORT = re.compile(r"(?:ray://)?([^:/]+):([0-9]{1,5})")
_PROBE_S = 10.0


@dataclass(frozen=True)
class RayRunner:
    """Writes units as tasks of Ray; needs the extra `ray`.

    Every node needs this package, the inputs and the corpus under the same paths, or in
    buckets.

    Args:
        address: The cluster, as for `ray.init`. None means the cluster in
            `RAY_ADDRESS`; if this is not set, a cluster that runs on this machine, or
            else a new one. A program that is already connected to a cluster uses that
            cluster.
    """

    address: str | None = None

    def run(self, writer: Writer, numbers: Sequence[int], /) -> Generator[Outcome]:
        """Write units; yield an outcome when a unit ends or is retried.

        Raises:
            ConnectionError: There is no cluster at the address, or Ray does not start.
            ModuleNotFoundError: Ray is not installed.
        """
        if not numbers:
            return
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise missing_extra("--ray", "ray", "roxxel-prepare", "ray") from error
        if ray.is_initialized():  # The calling program has connected to its cluster.
            yield from _outcomes(ray, writer, numbers)
            return
        self._connect(ray)
        try:
            yield from _outcomes(ray, writer, numbers)
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        address = self.address or os.environ.get("RAY_ADDRESS")
        try:
            # Ray waits a minute and a half for a server that is not there.
            found = _HOST_AND_PORT.fullmatch(address or "")
            if found is not None:
                socket.create_connection((found[1], int(found[2])), _PROBE_S).close()
            ray.init(self.address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises errors of many types.
            reason = reason_of(error)
            if address in {None, "local"}:
                raise ConnectionError(
                    f"--ray: Ray does not start on this machine ({reason:.300}); start "
                    "a cluster with `ray start --head`, or give --workers in its place"
                ) from error
            raise ConnectionError(
                f"--ray {address}: no cluster of Ray answers ({reason:.300}); check "
                "the address, or start one with `ray start --head`"
            ) from error


def _outcomes(ray: Any, writer: Writer, numbers: Sequence[int]) -> Generator[Outcome]:
    # A list keeps Ray from loading the writer again for each task.
    shared = [ray.put(writer)]
    work = ray.remote(num_cpus=1, max_retries=0)(_work)
    folder = str(Path.cwd())
    waiting = iter(numbers)
    tasks: dict[Any, int] = {}
    attempts: Counter[int] = Counter()
    try:
        while True:
            for number in islice(waiting, _IN_FLIGHT - len(tasks)):
                tasks[work.remote(shared, folder, number)] = number
            if not tasks:
                return
            [task], _ = ray.wait(list(tasks), num_returns=1)
            number = tasks.pop(task)
            try:
                outcome: Outcome = ray.get(task)
            except ray.exceptions.RayError as error:
                attempts[number] += 1
                if attempts[number] <= _RETRIES:
                    tasks[work.remote(shared, folder, number)] = number
                    yield Outcome(number, None)
                    continue
                outcome = _failed(number, error)
            yield outcome
    finally:
        for task in tasks:
            ray.cancel(task, force=True)


def _failed(number: int, error: Exception) -> Outcome:
    problem = ChildProcessError(
        f"the task of unit {number} ended early {_RETRIES + 1} times "
        f"({type(error).__name__}), perhaps for lack of memory; write again, which "
        "keeps the finished units"
    )
    problem.__cause__ = error
    return Outcome(number, None, problem)


_writers: dict[Any, Writer] = {}
"""Maps a Ray reference to its writer, so that a worker loads a tokenizer once."""


def _work(shared: list[Any], folder: str, number: int) -> Outcome:
    """Write a unit in a worker process of Ray."""
    [reference] = shared
    if reference not in _writers:
        # Inputs may be relative to the folder of the driver.
        with contextlib.suppress(OSError):  # A missing input gives a clearer error.
            os.chdir(folder)
        os.environ.update(ONE_THREAD)
        ray: Any = importlib.import_module("ray")
        _writers[reference] = ray.get(reference)
    return outcome_of(_writers[reference], number)
