"""Texts about a run that the export of a checkpoint contains; without JAX."""

from __future__ import annotations

import re
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
    run = re.sub("/checkpoints$", "", checkpoints)
    if run != checkpoints:
        config = RunFolder(run).config_text(step)
        if config is not None:
            texts["config"] = config
    data: Any = extra.get("data") or {}
    for source in data.get("sources", []):
        if source.get("name") == "self" and source.get("tokenizer"):
            texts["tokenizer"] = str(source["tokenizer"])
    return texts
