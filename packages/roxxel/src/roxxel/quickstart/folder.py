"""The folder of a quickstart run, and the run's config.

`.quickstart` marks the folder of a quickstart. If a folder is not empty and has no
`.quickstart`, the quickstart refuses the folder and changes nothing in it. A new run
writes `config.toml` last. If this file is missing, the earlier start was incomplete,
and the quickstart starts again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_curriculum import Phase, Schedule
from roxxel_store.files import replace_file
from roxxel_store.urls import check_on_disk
from roxxel_train import RunFolder

from roxxel.config import (
    EvalConfig,
    RunConfig,
    TrainerConfig,
    config_text,
    load_config,
)

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "roxxel.models:llama"

_PEAK_RATE = 4e-3
"""Highest learning rate: a model of a million parameters learns well at high rates."""

DEFAULT_STEPS = 160
"""Default steps of a new run: under two minutes on two idle processor cores."""

MIN_STEPS = 2
"""Minimum steps of a run: one for each phase."""

_CONFIG = "config.toml"
DATA = "data"

LIBRARY = f"{DATA}/library.rox"
"""The first corpus of a run, as a path in the run's folder."""

_MARK = ".quickstart"
_OURS = frozenset(
    {
        *(_CONFIG, _CONFIG + ".tmp", DATA, _MARK),
        # Written by `roxxel train` and `roxxel report`.
        "report.html",
        *RunFolder.NAMES,
    }
)
_HEAD = """\
# Written by `roxxel quickstart`, which continues this run.
# `roxxel plan` shows what this file declares; `roxxel train` also continues the run.

"""


class QuickstartError(ValueError):
    """A request is invalid or does not fit the folder."""


def new_config(path: Path, steps: int) -> RunConfig:
    """Return the config of a new run: short contexts first, then long ones.

    Args:
        path: Folder of the run.
        steps: Steps of the whole run. The intervals of logging, evaluation and
            checkpoints are computed from this number.
    """
    boundary = max(1, steps * 7 // 10)
    phases = (
        # A sequence has one byte more than the context: the last target. Steps of both
        # phases take about the same time.
        Phase(boundary, 8, 256 + 1, {"library": 0.9, "docstrings": 0.1}),
        Phase(steps - boundary, 1, 1024 + 1, {"library": 0.8, "docstrings": 0.2}),
    )
    return RunConfig(
        file=path / _CONFIG,
        sources={
            "library": (LIBRARY,),
            "docstrings": (f"{DATA}/docstrings.rox",),
        },
        # After 20 epochs a small model has memorised the code.
        schedule=Schedule(phases, max_epochs=20, primary="library"),
        model=MODEL,
        model_args={"preset": "tiny", "peak_rate": _PEAK_RATE},
        save_path=".",
        trainer=TrainerConfig(
            log_every=max(1, steps // 20),
            eval_every=max(25, steps // 4),
            checkpoint_every=max(5, steps // 10),
        ),
        eval=EvalConfig(
            {"self": (f"{DATA}/held_out.rox",)}, Schedule((Phase(8, 4, 1024 + 1),))
        ),
    )


def steps_of(config: RunConfig) -> int:
    """Return the steps of the whole run."""
    return sum(phase.steps or 0 for phase in config.schedule.phases)


def lengthened(config: RunConfig, steps: int) -> RunConfig:
    """Return a config whose last phase ends after `steps` steps."""
    *before, last = config.schedule.phases
    more = replace(last, steps=(last.steps or 0) + steps - steps_of(config))
    schedule = replace(config.schedule, phases=(*before, more))
    return replace(config, schedule=schedule)


class QuickstartFolder:
    """A folder that is, or will be, one quickstart run.

    Args:
        path: The folder; it need not exist.

    Raises:
        QuickstartError: The path is a URL, or the folder has other content.

    >>> from pathlib import Path
    >>> QuickstartFolder(Path("new")).config() is None
    True
    """

    def __init__(self, path: Path) -> None:
        remedy = "a quickstart needs a folder on a disk; give another --out"
        check_on_disk(str(path), remedy, QuickstartError)
        self.path = path
        names = self._names()
        if names and _MARK not in names:
            raise QuickstartError(
                f"{path}: holds {_listed(names)} and is not a quickstart run; "
                "give another --out"
            )

    def config(self) -> RunConfig | None:
        """Return the config of the run; None if no run has begun.

        Raises:
            ConfigError: The file is damaged.
            QuickstartError: The config does not belong to a quickstart.
        """
        file = self.path / _CONFIG
        if not file.exists():
            return None
        config = load_config(file)
        if not _is_ours(config):
            raise QuickstartError(
                f"{file}: was edited, or is of an earlier version, and is no longer a "
                "quickstart's config; use `roxxel train` with this file, start over "
                "with --fresh, or give another --out"
            )
        return config

    def check_removable(self) -> None:
        """Check that the folder holds only the files of a run, which no process trains.

        Raises:
            QuickstartError: The folder holds other files too, or the run is training.
        """
        if RunFolder(self.path).is_running:
            raise QuickstartError(
                f"{self.path}: its run is training, so --fresh removes nothing; stop "
                "that program, or give another --out"
            )
        foreign = self._names() - _OURS
        if foreign:
            raise QuickstartError(
                f"{self.path}: holds {_listed(foreign)} beside the run, so --fresh "
                "removes nothing; move these files away, or give another --out"
            )

    def begin(self) -> None:
        """Create the folder with its mark, or remove the run that it holds.

        Raises:
            QuickstartError: The folder holds other files too, or the run is training.
        """
        self.check_removable()
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / _MARK).touch()
        # Remove the config first: without a config, the remaining files are not a run.
        for name in (_CONFIG, *sorted(_OURS - {_CONFIG, _MARK})):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def write(self, config: RunConfig) -> None:
        """Write the config of the run atomically."""
        text = _HEAD + config_text(config)
        draft = self.path / (_CONFIG + ".tmp")
        replace_file(self.path / _CONFIG, text.encode(), draft)

    def _names(self) -> set[str]:
        if not self.path.exists():
            return set()
        return {entry.name for entry in self.path.iterdir()}


def _is_ours(config: RunConfig) -> bool:
    """Return whether a config has the parts that a quickstart relies on."""
    sources = config.sources
    return (
        config.model == MODEL
        and all(phase.steps is not None for phase in config.schedule.phases)
        and set(sources) == {config.schedule.primary, "docstrings"}
        and all(len(paths) == 1 for paths in sources.values())
        and "" in config.held_out
    )


def _listed(names: set[str]) -> str:
    first = sorted(names)[:3]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
