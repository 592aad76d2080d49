"""Runs that one command trains one after the other, such as those of a sweep.

Each is an ordinary run with its own config file, so every command reads it, and it
continues after a kill. Data, such as documents or a blend, is not part of a compiled
program. So with JAX's compilation cache, which the trainer turns on, each program is
compiled once for all runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.files import replace_file
from roxxel_train import RunFolder

from roxxel.config import config_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel.config import RunConfig


def write_configs(configs: Iterable[RunConfig]) -> None:
    """Write each config into its file, whose folder must exist."""
    for each in configs:
        draft = each.file.with_name(each.file.name + ".tmp")
        replace_file(each.file, config_text(each).encode(), draft)


def is_complete(config: RunConfig, total_steps: int) -> bool:
    """Return whether a run has saved its last step, and evaluated it."""
    return RunFolder(str(config.run_folder)).finished_step == total_steps
