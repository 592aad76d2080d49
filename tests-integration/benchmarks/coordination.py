"""Measures what N processes cost process 0 while they train, and while they agree.

One real coordination service of JAX runs in a process, with the watcher and the
agreement of a run. Other programs act as the N - 1 other processes, eighty in each
program. Each of these processes sends its own requests for news, signs of life,
heartbeats of JAX, and votes. "cores" is the CPU time of the service's process over the
wall time, "s to act" the time from a request to save until every process knows the
step. An agreement costs three requests per process: a vote, and a new wait for news
after the call and after the decision. Below the table, figures for more processes are
extrapolated.

    python tests-integration/benchmarks/coordination.py
    python tests-integration/benchmarks/coordination.py --processes 16 256
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
from roxxel_ckpt.coordination import CoordinationService, coordination_service
from roxxel_train._together import processes
from roxxel_train._together.launcher import held_port
from roxxel_train._together.news import News
from roxxel_train._together.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = "roxxel_train/watch"
STEP_S = 0.01
NUM_AGREEMENTS = 3
HEARTBEAT_S = 50.0
"""Time between two heartbeats of JAX: half of the silence that it allows by default."""
GUARD_S = 600.0


@dataclass(frozen=True)
class Cost:
    """What one number of processes costs process 0."""

    processes: int
    idle_cores: float
    idle_requests_per_s: float
    agreement_cpu_s: float
    agreement_s: float
    all_act_s: float

    def __str__(self) -> str:
        """Return a row of the table."""
        return (
            f"{self.processes:9} {self.idle_cores:10.4f} "
            f"{self.idle_requests_per_s:10.1f} {self.agreement_cpu_s:13.3f} "
            f"{self.agreement_s:11.2f} {self.all_act_s:9.2f}"
        )


HEAD = "processes idle cores idle req/s CPU s to agree s to agree  s to act"


def shares(count: int) -> list[range]:
    """Return the processes that each real client acts for.

    The clients of one program share a connection, which carries at most a hundred
    requests at a time.
    """
    return [range(at, min(at + 80, count)) for at in range(1, count, 80)]


def unreported(text: str) -> None:
    """Discard the reports of a run that has no log."""
    del text


def serve(port: int, count: int, idle_s: float) -> None:
    """Act as process 0: train, agree, and print the cost."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 1 + len(shares(count)), 0)
    found = coordination_service()
    assert found is not None
    service = replace(found, process_count=count)
    watcher = Watcher(service)
    watcher.start()
    setattr(processes, "watcher", lambda: watcher)  # noqa: B010 - of this program
    for share in shares(count):
        service.get(f"ready/{share.start}", GUARD_S)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    every_s = watcher.sign_every_s
    time.sleep(every_s * math.ceil(idle_s / every_s))
    idle_cores = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
    ended = processes.Processes(report=unreported, hang_after_s=None, timeout_s=GUARD_S)
    ended.__enter__()
    cpu, agreed, acted = 0.0, 0.0, 0.0
    step = 0
    for number in range(NUM_AGREEMENTS):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        ended.request_save()
        while True:
            step += 1
            ended.before(step)
            time.sleep(STEP_S)
            if ended.after(step) is not None:
                break
        agreed = max(agreed, time.perf_counter() - began_s)
        for share in shares(count):
            service.get(f"acted/{number}/{share.start}", GUARD_S)
        acted = max(acted, time.perf_counter() - began_s)
        cpu = max(cpu, time.process_time() - cpu_s)
    requests = count / every_s + count / HEARTBEAT_S
    cost = Cost(count, idle_cores, requests, cpu, agreed, acted)
    sys.stdout.write(json.dumps(asdict(cost)) + "\n")
    sys.stdout.flush()
    service.set("over", None)
    os._exit(0)


class Others:
    """Acts as some of the other processes, in one program."""

    def __init__(self, port: int, number: int, share: range, count: int) -> None:
        # JAX has no public function that makes a client.
        jax_library: Any = import_module("jax._src.lib")
        client = jax_library._jax.get_distributed_runtime_client(
            f"127.0.0.1:{port}", 1 + number, init_timeout=300, use_compression=True
        )
        client.connect()
        self.services = [
            CoordinationService(index, count, client, "127.0.0.1") for index in share
        ]
        self.start = share.start
        self.change = threading.Condition()
        self.num_acted: defaultdict[int, int] = defaultdict(int)

    def read(self, service: CoordinationService) -> None:
        """Read the news as one process, and vote."""
        news = News(service, f"{KEYS}/news")
        while True:
            _, (kind, *values) = news.read()
            if kind == "call":
                name, turn = values
                key = f"roxxel/{name}/votes/{turn}/{service.process_index}"
                service.set(key, (1, None))
            elif kind == "act":
                with self.change:
                    self.num_acted[values[1]] += 1
                    is_last = self.num_acted[values[1]] == len(self.services)
                if is_last:
                    service.set(f"acted/{values[1]}/{self.start}", None)

    def sign(self, every_s: float) -> None:
        """Publish the signs of life of all processes, all at the same moments."""
        for number in itertools.count():
            time.sleep(every_s - time.time() % every_s)
            for service in self.services:
                key = f"{KEYS}/alive/{service.process_index}"
                service.set(key, [number, 1, None, 0.0, [], [1]], overwrite=True)

    def beat(self) -> None:
        """Send a request in place of each heartbeat of JAX, evenly in time."""
        for service in itertools.cycle(self.services):
            time.sleep(HEARTBEAT_S / len(self.services))
            service.set(f"beat/{service.process_index}", None, overwrite=True)


def act(port: int, count: int) -> None:
    """Act as all other processes, in as many programs as the connections need."""
    numbered = list(enumerate(shares(count)))
    # Nothing of JAX runs yet, so the programs can be forked.
    number, share = next((each for each in numbered[1:] if not os.fork()), numbered[0])
    others = Others(port, number, share, count)
    threading.stack_size(256 * 1024)
    for service in others.services:
        threading.Thread(target=others.read, args=(service,), daemon=True).start()
    first = others.services[0]
    every_s = Watcher(first).sign_every_s
    threading.Thread(target=others.sign, args=(every_s,), daemon=True).start()
    threading.Thread(target=others.beat, daemon=True).start()
    first.set(f"ready/{share.start}", None)
    first.get("over", GUARD_S)
    os._exit(0)


def measure(count: int, idle_s: float) -> Cost:
    """Return the cost of `count` processes."""
    with held_port() as port:
        command = [sys.executable, __file__, "--port", str(port), "--count", str(count)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        others = subprocess.Popen(
            [*command, "--role", "act"], env=environment, process_group=0
        )
        try:
            done = subprocess.run(
                [*command, "--role", "serve", "--idle", str(idle_s)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(others.pid, signal.SIGKILL)
            others.wait()
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def modelled(count: int, costs: Sequence[Cost]) -> str:
    """Return the cost of more processes, in proportion to the largest measured."""
    last = costs[-1]
    factor = count / last.processes
    return (
        f"in proportion, {count} processes: idle {factor * last.idle_cores:.3f} cores, "
        f"an agreement {factor * last.agreement_cpu_s:.1f} s of CPU and "
        f"{factor * last.all_act_s:.1f} s"
    )


def main(arguments: Sequence[str] | None = None) -> list[Cost]:
    """Run the benchmark, or one of its programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[16, 256, 1000, 4000]
    )
    parser.add_argument("--idle", type=float, default=20.0, metavar="S")
    for hidden in ("--port", "--count"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    costs: list[Cost] = []
    if options.role == "serve":
        serve(options.port, options.count, options.idle)
    elif options.role == "act":
        act(options.port, options.count)
    else:
        sys.stdout.write(f"{platform.platform()}, {os.cpu_count()} cores, ")
        sys.stdout.write(f"JAX {jax.__version__}\n{HEAD}\n")
        for count in options.processes:
            costs.append(measure(count, options.idle))
            sys.stdout.write(f"{costs[-1]}\n")
            sys.stdout.flush()
        sys.stdout.write(modelled(10_000, costs) + "\n")
    return costs


if __name__ == "__main__":
    main()
