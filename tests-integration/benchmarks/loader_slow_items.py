"""Measures how much 8 workers speed up slow items, against no workers.

A function maps 80 items in batches of 2; each item takes 100 ms, as in the example of
slow preprocessing in the documentation of loadax. Each worker makes a whole batch at a
time, so the limit is eight times the speed.
"""

from __future__ import annotations

import argparse
import platform
import sys
from time import perf_counter, sleep

from roxxel_loader import Dataloader, SimpleDataset


def seconds(num_items: int, item_ms: float, workers: int) -> float:
    """Return how long all batches take."""

    def slowly(item: int) -> int:
        sleep(item_ms / 1000)
        return item

    dataset = SimpleDataset(range(num_items)).map(slowly)
    began = perf_counter()
    found = [
        int(item)
        for batch in Dataloader(dataset, batch_size=2, workers=workers, prefetch=3)
        for item in batch
    ]
    taken_s = perf_counter() - began
    assert found == list(range(num_items)), found
    return taken_s


def main(arguments: list[str] | None = None) -> float:
    """Measure, print and return how many times faster the workers are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=80)
    parser.add_argument("--item-ms", type=float, default=100.0)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args(arguments)
    alone = seconds(options.items, options.item_ms, 0)
    shared = seconds(options.items, options.item_ms, options.workers)
    print(
        f"{platform.machine()}, python {platform.python_version()}: {options.items} "
        f"items of {options.item_ms:g} ms: {alone:.2f} s alone, {shared:.2f} s with "
        f"{options.workers} workers, {alone / shared:.2f} times faster"
    )
    return alone / shared


if __name__ == "__main__":
    main(sys.argv[1:])
