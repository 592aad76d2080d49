"""Asynchronous, verified Orbax checkpoints of NNX objects and any other JAX pytree.

`Checkpointer` saves the live state in the background, keeps the newest and the best
checkpoints, verifies each file before use, and restores bit for bit into the shardings
of the live model::

    with Checkpointer("checkpoints", model, optimizer) as checkpointer:
        start = checkpointer.restore()
        for step in range(start, 1000):
            ...
            checkpointer.save(step + 1, {"loss": loss})

Without a model, `save(step, metrics, state=tree)` and `load(like=tree)` do the same for
any other pytree.

The package resolves its names on first use, so `roxxel-ckpt` does not import JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_ckpt._arrays.export import import_safetensors
    from roxxel_ckpt._arrays.layout import LeafSpec
    from roxxel_ckpt._place.description import (
        BestRule,
        read_description,
    )
    from roxxel_ckpt._restore.compare import RestoreReport
    from roxxel_ckpt._save.save import SaveRecord
    from roxxel_ckpt.checkpointer import Checkpointer
    from roxxel_ckpt.errors import (
        CheckpointBucketError,
        CheckpointDamagedError,
        CheckpointError,
        CheckpointMismatchError,
        CheckpointNotFoundError,
        CheckpointStateLostError,
        CheckpointTimeoutError,
        CheckpointUnreadableError,
        CheckpointWriteError,
    )

__all__ = [
    "BestRule",
    "CheckpointBucketError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointStateLostError",
    "CheckpointTimeoutError",
    "CheckpointUnreadableError",
    "CheckpointWriteError",
    "Checkpointer",
    "LeafSpec",
    "RestoreReport",
    "SaveRecord",
    "import_safetensors",
    "read_description",
]

_HOMES = {
    "BestRule": "_place.description",
    "Checkpointer": "checkpointer",
    "LeafSpec": "_arrays.layout",
    "RestoreReport": "_restore.compare",
    "SaveRecord": "_save.save",
    "import_safetensors": "_arrays.export",
    "read_description": "_place.description",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
