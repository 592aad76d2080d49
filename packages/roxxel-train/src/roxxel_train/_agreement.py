"""What only process 0 does, so that no process waits for one that has failed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import multihost_utils

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def together() -> Generator[None]:
    """Run a block on every process and leave it together, or not at all.

    The files of a run are process 0's, and a step is everybody's: were one process to
    fail alone, the others would wait for it in the next collective.

    Raises:
        RuntimeError: The block failed in another process.
    """
    if jax.process_count() == 1:
        yield
        return
    try:
        yield
    except BaseException:
        _failed(here=True)
        raise
    failed = _failed(here=False)
    if failed.any():
        raise RuntimeError(
            f"process {int(np.argmax(failed))} could not go on; its own error says why"
        )


def _failed(*, here: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray(multihost_utils.process_allgather(np.asarray(here)))
