"""A run that other trainers make: ten steps of two lengths over a blend, with masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from roxxel_curriculum import Curriculum, Phase
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
