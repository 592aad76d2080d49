"""Measures the cost of verifying a share of a run, against training the run.

A run of the recipe's model on the CPU saves a hundred times. `roxxel.verify` then
trains one interval between checkpoints again, a hundredth of the run, and intervals of
five and twenty hundredths. A straight line through the three times gives the time of a
start and the time of a step. The latter is compared with a step of the run, including
its saves.

    python tests-integration/benchmarks/verify_share.py

gives the published figures.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from roxxel import Roxxel, verify
from roxxel.config import load_config, make_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARES = (1, 5, 20)
"""The verified shares of the run, in hundredths."""

CONFIG = """
model = "roxxel.models:llama"
save_path = "run"

[sources]
self = "text_*.rox"

[[phases]]
steps = {steps}
batch_size = 8
seq_len = 129

[model_args]
preset = "tiny"
width = {width}

[trainer]
log_every = 1
checkpoint_every = {every}
max_to_keep = false
"""


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Print and return the times in seconds; the run's time is without its start."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="a multiple of 100")
    parser.add_argument("--width", type=int, default=160, help="of the model")
    options = parser.parse_args(arguments)
    steps, every = options.steps, options.steps // 100
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, redirect_stderr(StringIO()):
        folder = Path(name)
        random = np.random.default_rng(0)
        documents = (random.integers(0, 256, 1000) for _ in range(2 * steps))
        Roxxel(folder / "text_*.rox").write(documents, separator=256)
        text = CONFIG.format(steps=steps, every=every, width=options.width)
        (folder / "run.toml").write_text(text)
        trainer = make_trainer(load_config(folder / "run.toml"))
        # The programs are compiled before the time is taken; verify finds them too.
        trainer.run(until=every)
        began_s = perf_counter()
        trainer.run()
        found["run"] = (perf_counter() - began_s) * steps / (steps - every)
        verify(folder / "run", range(every, 2 * every))
        for share in SHARES:
            began_s = perf_counter()
            first = 40 * every
            (one,) = verify(folder / "run", range(first, first + share * every))
            found[f"{share} %"] = perf_counter() - began_s
            assert one.is_equal, str(one)
    times = [found[f"{share} %"] for share in SHARES]
    slope, start = np.polyfit([share / 100 for share in SHARES], times, 1)
    found |= {"start": float(start), "step": float(slope) / found["run"]}
    print(
        f"{platform.machine()}, {steps} steps of 8 x 129, {every} between checkpoints"
    )
    print(f"the run takes {found['run']:.1f} s")
    for share in SHARES:
        print(f"{share:2d} % of it verified: {found[f'{share} %']:.1f} s")
    print(
        f"so a start takes {found['start']:.1f} s, and a verified step "
        f"{found['step']:.2f} of a step of the run"
    )
    return found


if __name__ == "__main__":
    main()
