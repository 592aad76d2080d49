"""Lets two or three programs save into one bucket in random orders of their requests.

Programs are suspended, cut off for good, and started between any two requests. Some
requests lose their answer, and some take effect only later. After every request

- every step that the manifest lists is whole;
- no successfully saved step has disappeared, and none counts as damaged.

At the end, a last program continues from the newest step, and nothing is left that the
manifest does not list. A failure prints the seed of its schedule.

    python tests-integration/benchmarks/bucket_takeovers.py                  # 20
    python tests-integration/benchmarks/bucket_takeovers.py --schedules 300  # campaign
"""

from __future__ import annotations

import argparse
import collections
import logging
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket
from takeovers import gated, run_schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("roxxel_ckpt").setLevel(logging.ERROR)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, running_bucket(Path(folder)):
        for run in range(options.schedules):
            seed = options.seed * 1_000_000 + run
            with gated(Path(folder), f"run-{seed}") as gate:
                try:
                    run_schedule(gate, seed)
                except AssertionError as error:
                    raise SystemExit(f"seed {seed}: {error}") from error
            counts["schedules"] += 1
            counts["programs"] += len(gate.programs)
            counts["programs that were taken over"] += sum(
                "another program" in str(each.error) for each in gate.programs
            )
            counts["steps acknowledged"] += len(gate.acknowledged)
    for what, number in sorted(counts.items()):
        print(f"{what}: {number}")


if __name__ == "__main__":
    main()
