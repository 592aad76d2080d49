"""Trains on four devices, over as many processes as the environment names.

    several.py DATA RUN SEEN

What each process read, which files of the run it opened to write, how many numbers of
each array JAX gathered from all processes to compare them, and after which steps Python
collected garbage, it leaves in `SEEN/<process>.json`.
"""

import gc
import json
import os
import sys
import zlib
from pathlib import Path

import jax
import numpy as np
import optax
from drill import SEED, Model, loss_fn, norm
from flax import nnx
from jax.experimental import multihost_utils
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_train.distributed import initialize

PHASES = [Phase(3, 8, 17, {"self": 0.75, "code": 0.25}), Phase(12, 4, 33)]

data, run, seen = map(Path, sys.argv[1:])
written = set()
gathered = [0]
collected = []
assert_equal = multihost_utils.assert_equal


def watched_assert_equal(tree, *rest, **options):
    gathered.extend(np.size(x) for x in jax.tree.leaves(tree))
    return assert_equal(tree, *rest, **options)


def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path, _, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR) and Path(path).is_relative_to(run):
            written.add(str(Path(path).relative_to(run)))


def watch_collections(phase, _):
    if phase == "start":
        collected.append(int(trainer.state.step[...]))


class Watched(Roxxel):
    """A corpus that remembers every window that was read, and a digest of it."""

    def __init__(self, path):
        super().__init__(path)
        self.windows = []

    def read(self, starts, length, dtype=None, out=None):
        rows = super().read(starts, length, dtype, out)
        for start, row in zip(np.asarray(starts), rows, strict=True):
            digest = zlib.crc32(row.astype(np.int32).tobytes())
            self.windows.append([int(start), length, digest])
        return rows


if __name__ == "__main__":
    sys.addaudithook(watch)
    multihost_utils.assert_equal = watched_assert_equal
    initialize()
    assert jax.device_count() == 4
    corpora = {name: Watched(data / f"{name}_*.rox") for name in ("web", "code")}
    model = Model(0.1, nnx.Rngs(0))
    trainer = Trainer(
        model,
        nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param),
        Curriculum(corpora["web"], PHASES, {"code": corpora["code"]}),
        loss_fn,
        run,
        eval_fn=lambda state: norm(state.model),
        checkpoint_every=3,
        gc_every=4,
        # The losses of four rows differ by more than this from step to step.
        skip_spikes={"deviations": 0.1, "window": 8, "what": "loss"},
        log_every=1,
        seed=SEED,
    )
    gc.callbacks.append(watch_collections)
    trainer.run()
    gc.callbacks.clear()
    windows = {name: corpus.windows for name, corpus in corpora.items()}
    report = {
        "windows": windows,
        "written": sorted(written),
        "gathered": gathered,
        "collected": collected,
    }
    (seen / f"{jax.process_index()}.json").write_text(json.dumps(report))
