"""How processes stay together: what one of them does alone, and what all must share."""

from __future__ import annotations

import hashlib
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


def check_same(what: str, text: str) -> None:
    """Check that every process has the same text.

    Args:
        what: Names it in the error.
        text: Compared by its digest.

    Raises:
        ValueError: A process has another text than process 0.
    """
    if jax.process_count() == 1:
        return
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    mine = np.frombuffer(digest, np.uint32)
    of_all = np.asarray(multihost_utils.process_allgather(mine))
    differing = np.flatnonzero((of_all != of_all[0]).any(axis=1))
    if differing.size:
        raise ValueError(
            f"processes {differing.tolist()} have another {what} than process 0; "
            "start all of them with the same files and arguments"
        )


def _failed(*, here: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray(multihost_utils.process_allgather(np.asarray(here)))
