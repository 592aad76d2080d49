"""Runs that one command trains one after the other, such as those of a sweep.

Each is an ordinary run with its own config file, so every command reads it, and it
continues after a kill. Data, such as documents or a blend, is not part of a compiled
program. So with JAX's compilation cache, which the trainer turns on, each program is
compiled once for all runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.output import replace_file
from roxxel_train import RunFolder

from roxxel.config import config_text, make_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel.config import RunConfig


def write_configs(configs: Iterable[RunConfig]) -> None:
    """Write each config into its file, whose folder must exist."""
    for each in configs:
        draft = each.file.with_name(each.file.name + ".tmp")
        replace_file(each.file, config_text(each).encode(), draft)


def is_complete(config: RunConfig, total_steps: int) -> bool:
    """Return whether a run has saved its last step, and evaluated it."""
    return RunFolder(str(config.run_folder)).finished_step == total_steps


def train(
    config: RunConfig,
    check: Callable[[], None] = lambda: None,
    data: Mapping[str, Any] | None = None,
    held_out: Mapping[str, Mapping[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> None:
    """Train a run to its end, or continue it; `check` runs once its data are open."""
    trainer = make_trainer(config, data, held_out, devices=devices)
    check()
    trainer.run()
