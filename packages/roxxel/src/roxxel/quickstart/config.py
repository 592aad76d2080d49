"""The quickstart's run as a config file, for `roxxel plan` and `roxxel train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_curriculum import Phase, Schedule

from roxxel.config import EvalConfig, RunConfig, TrainerOptions, config_text
from roxxel.quickstart import settings
from roxxel.quickstart.curriculum import make_phases
from roxxel.quickstart.folder import CONFIG, DATA
from roxxel.quickstart.heldout import AT_ONCE, NUM_WINDOWS

if TYPE_CHECKING:
    from roxxel.quickstart.folder import QuickstartFolder, Record

_HEAD = """\
# Written by `roxxel quickstart`, which goes on with this run by itself.
# `roxxel plan` shows what this file says, `roxxel train` goes on by it.

"""


def write_config(folder: QuickstartFolder, record: Record) -> None:
    """Write the config of a run into its folder, in place of an older one.

    Args:
        folder: The run's folder.
        record: What was fixed at its start, and the steps it shall have.
    """
    schedule = record.schedule
    file = folder.path / CONFIG
    phases = make_phases(schedule, record.steps)
    config = RunConfig(
        file=file,
        sources={
            "self": (f"{DATA}/library.rox",),
            "docstrings": (f"{DATA}/docstrings.rox",),
        },
        schedule=Schedule(tuple(phases), max_epochs=settings.MAX_EPOCHS),
        model="roxxel.quickstart.model:make",
        model_args={"seed": record.seed, "horizon": schedule.horizon},
        seed=record.seed,
        save_path=".",
        trainer=TrainerOptions(
            log_every=schedule.log_every,
            eval_every=schedule.eval_every,
            checkpoint_every=schedule.checkpoint_every,
        ),
        eval=EvalConfig({"self": (f"{DATA}/held_out.rox",)}, Schedule((_held_out(),))),
    )
    file.write_text(_HEAD + config_text(config), encoding="utf-8")


def _held_out() -> Phase:
    """Return what an evaluation reads: as much as the quickstart's own."""
    return Phase(NUM_WINDOWS // AT_ONCE, AT_ONCE, settings.LONG + 1)
