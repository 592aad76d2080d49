"""The program that `test_ending_early.py` runs in several processes at the same time.

One process ends after the first save, and the others go on to save.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from roxxel_ckpt import Checkpointer


def main() -> None:
    """Save once together; then one process raises, and the others save again."""
    port, count, index, ending, how, folder = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(index))
    saving = Checkpointer(folder, timeout=1000)
    saving.save(1, state={"numbers": np.zeros(4)})
    saving.wait()
    if index == ending:
        if how == "raises":
            raise ValueError("the data are gone")
        return
    saving.save(2, state={"numbers": np.ones(4)})


if __name__ == "__main__":
    main()
