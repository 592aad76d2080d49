"""What a config file says, as values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum import Schedule

    Sources = Mapping[str, tuple[str, ...]]
    """Paths or patterns of each corpus, by the name of the source."""


class ConfigError(ValueError):
    """A config file that cannot be understood or met; the message names it."""


@dataclass(frozen=True)
class TrainerOptions:
    """Keywords of `roxxel_train.Trainer`, which says what they mean.

    None stands for the trainer's own default; a `hang_after_s` of 0 never looks.
    """

    log_every: int | None = None
    eval_every: int | None = None
    checkpoint_every: int | None = None
    max_to_keep: int | None = None
    best_metric: str | None = None
    grad_accum_steps: int | None = None
    fields: tuple[str, ...] | None = None
    strict_sharding: bool | None = None
    init_from: str | None = None
    profile: tuple[int, int] | None = None
    hang_after_s: float | None = None
    check: Literal["headers", "blocks"] | None = None

    def given(self) -> dict[str, Any]:
        """Return those that the file sets."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class MeshConfig:
    """The mesh of devices.

    Attributes:
        preset: `"data-parallel"` splits batches only, `"fsdp"` the model too.
        axes: Devices along each axis by name, in order; -1 for all that are left.
            Empty for the preset's own.
        batch_axes: Axes that the rows of a batch are split over; empty for the first.
    """

    preset: Literal["data-parallel", "fsdp"] = "data-parallel"
    axes: Mapping[str, int] = field(default_factory=dict[str, int])
    batch_axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvalConfig:
    """What the held-out loss is taken over.

    Attributes:
        sources: Held-out corpora, by the same names as in weights.
        schedule: All of it is read at every evaluation.
    """

    sources: Sources
    schedule: Schedule


@dataclass(frozen=True)
class RunConfig:
    """One config file.

    Attributes:
        file: Where it was read from.
        sources: Corpora by name; `"self"` is the primary.
        schedule: Phases and all else that a curriculum has beside its corpora.
        model: `"module:function"`; the function returns model, optimizer and loss
            function. None where the file serves for planning only.
        model_args: Keywords of that function.
        seed: Seed of the order of the data.
        save_path: Folder of the run; None where the file serves for planning only.
        relative_to: Folder that paths are relative to, itself relative to the file's.
        trainer: Further keywords of the trainer.
        mesh: None for all devices, data-parallel.
        eval: None for no held-out loss.
    """

    file: Path
    sources: Sources
    schedule: Schedule
    model: str | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    save_path: str | None = None
    relative_to: str = "."
    trainer: TrainerOptions = TrainerOptions()
    mesh: MeshConfig | None = None
    eval: EvalConfig | None = None

    @property
    def folder(self) -> Path:
        """The folder that paths are relative to, and that holds the model's module."""
        return self.file.parent / self.relative_to

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run."""
        return None if self.save_path is None else self.path(self.save_path)

    def path(self, text: str) -> Path:
        """Return what a path in the file names."""
        return self.folder / Path(text).expanduser()
