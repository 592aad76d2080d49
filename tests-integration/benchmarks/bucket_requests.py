"""Measures requests, CPU and threads of reads from a bucket, against bare obstore.

A server on this machine responds to every request after `--latency-ms`. Each reader is
a separate program. It reads `--rows` windows of 1025 tokens and prefetches `--ahead` of
them: `roxxel` by `will_need` and `read`; `bare` by `obstore.get` on threads; `async` by
`obstore.get_async` from one thread. `threads` is the maximum that the program had,
including obstore's (on Linux; elsewhere only Python's).

    python tests-integration/benchmarks/bucket_requests.py                # a quick look
    python tests-integration/benchmarks/bucket_requests.py --rows 4000 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel

sys.path.append(str(Path(__file__).parents[1]))
from buckets import CREDENTIALS, running_bucket, set_faults

if TYPE_CHECKING:
    from collections.abc import Coroutine

LENGTH = 1025
HEAD_BYTES = 4096
BATCH = 16
READERS = ("roxxel", "bare", "bare of 32", "async")
MOST_THREADS = 192


def main(arguments: list[str] | None = None) -> dict[str, list[dict[str, float]]]:
    """Print and return what each reader needed, by round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--ahead", type=int, default=128)
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.reader:
        figures = measure(options.reader, options.rows, options.ahead)
        print(json.dumps(figures), flush=True)
        os._exit(0)  # the rows ahead do not matter, and obstore aborts if it has some
    found: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS}
    with tempfile.TemporaryDirectory() as folder, running_bucket(Path(folder)) as port:
        data = np.zeros((options.rows + options.ahead + BATCH) * LENGTH, np.uint16)
        Roxxel(f"{folder}/data/web_*.rox").write([data], dtype=np.uint16)
        set_faults(port, latency_s=options.latency_ms / 1000)
        for _ in range(options.rounds):
            for reader, rounds in found.items():
                rounds.append(one(options, reader))
                shown = ", ".join(f"{v:.0f} {k}" for k, v in rounds[-1].items())
                print(f"{reader}: {shown}", flush=True)
    return found


def one(options: argparse.Namespace, reader: str) -> dict[str, float]:
    sizes = ("--rows", str(options.rows), "--ahead", str(options.ahead))
    done = subprocess.run(
        [sys.executable, __file__, "--reader", reader, *sizes],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(reader: str, num_rows: int, ahead: int) -> dict[str, float]:
    """Read all rows by one reader."""
    window = {"roxxel": roxxel, "async": asynchronous}.get(reader, bare)
    hint, read = window(32 if reader == "bare of 32" else MOST_THREADS)
    hint(range(1))
    read(range(1))  # opens the corpus and the connection
    most, is_done = [0], threading.Event()
    watch = threading.Thread(target=count_threads, args=(most, is_done))
    watch.start()
    started, cpu_started = time.perf_counter(), time.process_time()
    hint(range(1, ahead))
    for first in range(1, num_rows, BATCH):
        hint(range(first + ahead - 1, first + ahead - 1 + BATCH))
        read(range(first, first + BATCH))
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    is_done.set()
    watch.join()
    return {
        "rows a second": num_rows / seconds,
        "us of CPU a row": 1e6 * cpu_s / num_rows,
        "threads": most[0] - 1,
    }


def count_threads(most: list[int], is_done: threading.Event) -> None:
    tasks = Path("/proc/self/task")
    while True:
        has_list = tasks.exists()
        count = len([*tasks.iterdir()]) if has_list else threading.active_count()
        most[0] = max(most[0], count)
        if is_done.wait(0.02):  # Even a quick look counts once.
            return


def roxxel(_: int) -> tuple[Any, Any]:
    corpus = Roxxel("s3://data/web_*.rox")

    def starts(rows: range) -> list[int]:
        return [row * LENGTH for row in rows]

    return (
        lambda rows: corpus.will_need(starts(rows), LENGTH),
        lambda rows: corpus.read(starts(rows), LENGTH),
    )


def bare(num_threads: int) -> tuple[Any, Any]:
    import obstore

    pool, futures = ThreadPoolExecutor(num_threads), dict[int, Any]()
    store, shard = bucket(), shard_name()

    def get(row: int) -> bytes:
        return bytes(obstore.get(store, **place(shard, row)).bytes())

    def hint(rows: range) -> None:
        futures.update({row: pool.submit(get, row) for row in rows})

    return hint, lambda rows: [futures.pop(row).result() for row in rows]


def asynchronous(_: int) -> tuple[Any, Any]:
    import obstore

    loop, futures = asyncio.new_event_loop(), dict[int, Any]()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    store, shard = bucket(), shard_name()

    async def get(row: int) -> bytes:
        found = await obstore.get_async(store, **place(shard, row))
        return bytes(await found.bytes_async())

    def send(task: Coroutine[Any, Any, bytes]) -> Any:
        return asyncio.run_coroutine_threadsafe(task, loop)

    def hint(rows: range) -> None:
        futures.update({row: send(get(row)) for row in rows})

    return hint, lambda rows: [futures.pop(row).result() for row in rows]


def bucket() -> Any:
    from obstore.store import S3Store

    return S3Store(
        "data",
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region=CREDENTIALS["AWS_REGION"],
        client_options={"allow_http": True},
    )


def shard_name() -> str:
    return Roxxel("s3://data/web_*.rox").paths[0].rpartition("/")[2]


def place(shard: str, row: int) -> dict[str, Any]:
    """Return the shard and the byte range of a row, as arguments of obstore."""
    start = HEAD_BYTES + 2 * LENGTH * row
    return {"path": shard, "options": {"range": (start, start + 2 * LENGTH)}}


if __name__ == "__main__":
    main()
