"""Measures the cost of withdrawn documents in a batch, against `segment_ids`.

Half of the documents of a corpus are withdrawn, chosen at random. A batch with
`loss_mask` reads the same tokens as a batch with `segment_ids`; both look up the
documents of each row. The limit is 1 % of a step of 100 ms, for a batch of 16 x 2049.

    python tests-integration/benchmarks/curriculum_withdrawn.py [--withdrawn 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from roxxel_curriculum import Field

DOCUMENT = 50
SHAPE = (16, 2049)
LIMIT_MS = 1.0
FIELDS: dict[str, tuple[Field, ...]] = {
    "segment_ids": ("tokens", "segment_ids"),
    "loss_mask": ("tokens", "loss_mask"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--withdrawn", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options.withdrawn, options.rounds)


def compare(folder: Path, withdrawn: int, rounds: int) -> None:
    """Print milliseconds of a batch with each field, measured in turn."""
    corpus = Roxxel(folder / "web.rox")
    tokens = np.arange(DOCUMENT, dtype=np.uint16)
    corpus.write((tokens for _ in range(2 * withdrawn)), dtype="uint16", separator=None)
    steps = 2 * withdrawn * DOCUMENT // (SHAPE[0] * SHAPE[1]) // 2
    phases = [Phase(steps, *SHAPE)]
    started = time.perf_counter()
    numbers = np.random.default_rng(0).choice(2 * withdrawn, withdrawn, replace=False)
    masking = Curriculum(corpus, phases, without={"self": numbers})
    samplers: dict[str, Any] = {
        "segment_ids": Curriculum(corpus, phases).sampler(
            0, fields=FIELDS["segment_ids"]
        ),
        "loss_mask": masking.sampler(0, fields=FIELDS["loss_mask"]),
        "tokens": Curriculum(corpus, phases).sampler(0),
    }
    declared_s = time.perf_counter() - started
    started = time.perf_counter()
    state = json.dumps(samplers["loss_mask"].state(steps))
    state_ms = (time.perf_counter() - started) * 1e3
    took: dict[str, list[float]] = {name: [] for name in samplers}
    for step in range(rounds):
        for name, sampler in samplers.items():
            started = time.thread_time()
            sampler.batch(step % steps)
            took[name].append((time.thread_time() - started) * 1e3)
    ours, peer, bare = (
        statistics.median(took[name]) for name in ("loss_mask", "segment_ids", "tokens")
    )
    print(
        f"{withdrawn} withdrawn documents: a batch of {SHAPE[0]} x {SHAPE[1]} takes "
        f"{ours:.2f} ms with loss_mask, {ours / peer:.2f} times one with segment_ids "
        f"({peer:.2f} ms) and {(ours - bare) / LIMIT_MS:.2f} of the limit of "
        f"{LIMIT_MS} ms more than its tokens ({bare:.2f} ms); declared in "
        f"{declared_s:.2f} s; a state of {len(state) / 1e6:.2f} MB in {state_ms:.0f} ms"
    )


if __name__ == "__main__":
    main()
