"""What `roxxel ckpt` learns about the run that saved a checkpoint; without JAX."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from roxxel_train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping


def run_texts(checkpoints: str, step: int, extra: Mapping[str, Any]) -> dict[str, str]:
    """Return texts about the run that saved a checkpoint, for `roxxel ckpt export`.

    Args:
        checkpoints: Folder of the checkpoints, or its URL.
        step: Step of the checkpoint.
        extra: JSON values that the trainer saved beside the arrays.

    Returns:
        `config` is the TOML that the run used at the step. `tokenizer` is the name and
        the hash of the primary corpus's tokenizer. An unknown text is left out.
    """
    texts: dict[str, str] = {}
    run = _run_of(checkpoints)
    if run is not None:
        config = run.config_text(step)
        if config is not None:
            texts["config"] = config
    data: Any = extra.get("data") or {}
    sources = data.get("sources")
    primary = sources[0] if sources else {}
    tokenizer = primary.get("tokenizer")
    if tokenizer:
        texts["tokenizer"] = str(tokenizer)
    return texts


def logged_digest(checkpoints: str, step: int) -> str | None:
    """Return the state digest that a run has logged at a save; None if unknown.

    Arguments as for `run_texts`.
    """
    run = _run_of(checkpoints)
    return None if run is None else run.saves().get(step)


@lru_cache(maxsize=1)
def _run_of(checkpoints: str) -> RunFolder | None:
    """Return the run around a folder of checkpoints; None if the folder stands alone.

    A command calls this for each step, so the log is read only once.
    """
    run = re.sub("/checkpoints$", "", checkpoints)
    return None if run == checkpoints else RunFolder(run)
