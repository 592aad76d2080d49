"""A run that other trainers make: ten steps of two lengths over a blend, with masks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.digest import add_step, batch_digest, digest_text
from roxxel_curriculum.run_log import METRICS
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from pathlib import Path

SEED = 3


def write(folder: Path) -> None:
    """Write two corpora of bytes."""
    chosen = np.random.default_rng(0)
    for name in ("prose", "code"):
        documents = (
            chosen.integers(0, 256, chosen.integers(20, 90)) for _ in range(200)
        )
        Roxxel(folder / f"{name}.rox").write(documents, vocab_size=256)


def curriculum_of(folder: str | Path) -> Curriculum:
    """Return ten steps, of which some read a withdrawn document."""
    prose, code = (Roxxel(f"{folder}/{name}.rox") for name in ("prose", "code"))
    phases = [
        Phase(6, 8, 65, {"self": 0.75, "code": 0.25}),
        Phase(4, 4, 129, {"self": 0.5, "code": 0.5}),
    ]
    return Curriculum(prose, phases, {"code": code}, without={"self": [2]})


def losses_of_log(run: Path, folder: Path) -> dict[int, float | None]:
    """Check that the log of a run has every step's digest; return the losses.

    Rows that a start gave up come before the rows of the same steps made again, and
    have the same digests.
    """
    sampler = curriculum_of(folder).sampler(SEED, fields=("tokens", "loss_mask"))
    digests, digest = dict[int, str](), 0
    for step in range(sampler.total_steps):
        digest = add_step(digest, step, batch_digest(sampler.batch(step)["tokens"]))
        digests[step + 1] = digest_text(digest)
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert {row["step"] for row in trained} == digests.keys()
    for row in trained:
        assert row["digest"] == digests[row["step"]]
    assert rows[-1]["status"] == "complete"
    return {row["step"] - 1: row.get("loss") for row in trained}
