"""The sinks that `log_to` of a trainer names, with their files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from roxxel_store.arguments import nearest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LogTo = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Names of sinks, or names with the options of each sink."""

SINKS: Mapping[str, tuple[str, str, Callable[[Path], dict[str, Any]]]] = {
    "tensorboard": (
        "roxxel_train.tensorboard",
        "TensorBoard",
        lambda run: {"log_dir": run / "tensorboard"},
    ),
    "wandb": ("roxxel_train.wandb", "WandB", lambda run: {"log_dir": run}),
}
"""For each sink: its module, its class, and its options for a given run folder.

W&B makes a subfolder `wandb` by itself. A sink is imported only if it is named.
"""


def check_log_to(log_to: LogTo) -> None:
    """Raise an error if a name is unknown."""
    for name in log_to:
        if name not in SINKS:
            hint = nearest(name, SINKS) or "name one of these"
            raise ValueError(
                f"log_to names {name!r}, but the sinks are "
                f"{', '.join(map(repr, SINKS))}; {hint}"
            )


def make_sinks(log_to: LogTo, folder: Path) -> list[Callable[[dict[str, Any]], object]]:
    """Return the sinks of a run.

    Raises:
        ModuleNotFoundError: A library is missing; the message names the extra.
        TypeError: A sink does not have one of the given options.
    """
    options = log_to if isinstance(log_to, dict) else {name: {} for name in log_to}
    sinks: list[Callable[[dict[str, Any]], object]] = []
    for name, given in options.items():
        module, class_name, options_of = SINKS[name]
        make = getattr(import_module(module), class_name)
        try:
            sinks.append(make(**{**options_of(folder), **given}))
        except TypeError as error:
            raise TypeError(f"log_to, sink {name!r}: {error}") from error
    return sinks
