"""The config that declares what a program has declared, to train its run again.

A start of `roxxel train` keeps its config. The start of a program has the same facts in
its row: the data, the settings of the trainer, and the arguments of
`roxxel.models.llama`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum import Phase, Policy, Schedule
from roxxel_curriculum.state import checked_state, recorded_phases
from roxxel_store.records import find_object
from roxxel_train import RunFolderError
from roxxel_train.config import Settings

from roxxel.config import MeshConfig, RunConfig, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from roxxel_train import RunFolder

REMEDY = "train with `roxxel train CONFIG`, whose runs can be trained again"


def config_of_program(
    run: RunFolder,
    step: int | None,
    moved: Collection[str],
) -> RunConfig:
    """Return the config of a run that a program without a config started.

    Args:
        run: The files of the run.
        step: As for `RunFolder.config_text`.
        moved: Names of sources that the caller knows to have moved.

    Raises:
        RunFolderError: The program had a model or a function that no command can make.
    """
    row = run.start_of(step)
    made = find_object(str(row.get("made_by")).encode()) or {}
    own = row.get("own")
    what = ""
    if made.get("function") != "llama" or not isinstance(own, list):
        what = "a model that is not of roxxel.models.llama"
    elif own:
        what = f"{' and '.join(map(str, cast('list[Any]', own)))} of its own"
    if what:
        raise RunFolderError(
            f"{run}: a Python program started this run with {what}, so its folder has "
            f"no config to train by; {REMEDY}"
        )
    try:
        return _declared(run, row, made["args"], moved)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{run}: its log does not say how its program trained it ({error}); "
            f"{REMEDY}"
        ) from error


def _declared(
    run: RunFolder,
    row: Mapping[str, Any],
    args: Mapping[str, Any],
    moved: Collection[str],
) -> RunConfig:
    data, settings = row["data"], dict(row["settings"])
    state = checked_state(data["state"])
    names = [source["name"] for source in state["sources"]]
    for name in names:
        if data["sources"].get(name) is None and name not in moved:
            raise ValueError(f"it has no path of source {name!r}")
    for name in ("init_from", "branch_from"):
        # The path in the settings may be relative to a folder that nobody knows.
        if settings.get(name) is not None:
            if run.parent is None:
                raise ValueError(f"it has no checkpoint for {name}")
            settings[name] = run.parent.path
    mesh = row["mesh"]
    return RunConfig(
        file=run.path / "config.toml",
        sources={name: _paths(data["sources"].get(name)) for name in names},
        schedule=Schedule(
            phases=_phases(state),
            longest=state["longest"],
            policies={x["name"]: Policy(**x["policy"]) for x in state["sources"]},
            overlap=state["overlap"],
            skips=tuple((at, steps) for at, steps in state["skips"]),
            primary=names[0],
        ),
        model="roxxel.models:llama",
        model_args=args,
        seed=state["seed"],
        save_path=run.location,
        trainer=TrainerConfig(
            # A stranger's log may name a function or a sink, which would be called.
            **{
                each.name: settings[each.name]
                for each in fields(Settings)
                if each.name in settings and each.name not in {"profile", "log_to"}
            }
        ),
        mesh=MeshConfig(axes=mesh) if {*mesh} != {"data"} else None,
    )


def _phases(state: Mapping[str, Any]) -> tuple[Phase, ...]:
    """Return the phases as a program declares them that continues the run.

    A phase that was edited has several entries. It is declared with its newest weights,
    and the state of the checkpoint from which it goes on divides it as it was.
    """
    found: list[Phase] = []
    for entry in recorded_phases(state):
        before = found.pop().steps or 0 if entry.is_edited else 0
        steps, weights = before + entry.steps, dict(entry.weights)
        found.append(Phase(steps, entry.batch_size, entry.seq_len, weights))
    return tuple(found)


def _paths(where: str | list[str] | None) -> tuple[str, ...]:
    return (where,) if isinstance(where, str) else tuple(where or ())
