"""`roxxel plan`: show what a run will read, from its config file and without JAX."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_store.command import Found
from roxxel_store.screen import say
from roxxel_train import RunFolder

from roxxel.cli._arguments import (
    CONFIG_EXAMPLE,
    Branch,
    Changes,
    ConfigFile,
    Json,
    Scans,
    config_of,
    scans_of,
    set_again,
    shown_command,
)
from roxxel.config import (
    ConfigError,
    HeldOut,
    RunConfig,
    begun_state,
    check_columns,
    check_model_args,
    check_model_data,
    compare_held_out,
    load_config,
    open_curriculum,
    recipe_rate,
    refused,
    sampler_of,
    used_config,
)
from roxxel.recipe.learning_rate import RECIPE
from roxxel.runs.scans import reads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum import Curriculum, Plan, PlanDiff, Sampler

    from roxxel.runs.scans import Reads

EPILOG = CONFIG_EXAMPLE


def plan(
    config: ConfigFile,
    *,
    set_: Changes = (),
    branch: Branch = None,
    diff: Annotated[Path | None, "OTHER"] = None,
    scan: Scans = (),
    json_: Json = False,
) -> None:
    """Show what a run will read, from its config file.

    The plan has tokens and epochs of each source in each phase, where a source runs
    out, and which tokens stay unread. The command reads no tokens and starts no
    accelerator. If the run in the config's save_path has begun, the plan shows the
    trained steps as they were trained. A config that changes these steps is an error.
    For each receipt of `roxxel scan` under [without], the plan says that no step reads
    what the scan has found, or which steps do.

    Args:
        diff: Show how the plan of CONFIG differs from the plan of OTHER, a config file
            or the folder of a run, and from which step on; each config is planned for
            the run in its own save_path.

    Raises:
        Found: A step reads what a scan has found.

    Example:
        roxxel plan run.toml
    """
    declared = config_of(config, set_, branch)
    check_model_args(declared)
    folder = declared.run_folder
    is_diff = diff is not None
    other, other_folder = _other(diff) if diff is not None else (declared, folder)
    # If only one of the configs has a save_path, both are planned for the run there.
    folder = folder or other_folder
    other_folder = other_folder or folder
    if folder and other_folder and _resolved(folder) == _resolved(other_folder):
        folder = other_folder
    state = begun_state(declared, folder)
    other_state = begun_state(other, other_folder) if is_diff else state
    curriculum, sampler = planned(declared, state)
    check_model_data(declared, curriculum)
    reads: list[Reads] = []
    if is_diff:
        done = max((each or {}).get("step", 0) for each in (state, other_state))
        _, before = planned(other, other_state)
        plans = (other, before.plan()), (declared, sampler.plan())
        _show_diff(done, *plans, is_json=json_)
    else:
        reads = _show_plan(declared, curriculum, sampler, scan, is_json=json_)
    if (state or other_state) and not json_:
        say()
        for each, done in {folder: state, other_folder: other_state}.items():
            number = f"{done['step']:,} steps" if done else "no steps"
            say(f"{each}: {number} of this run are done.")
    if declared.model is not None and not is_diff and not json_:
        preflight = shown_command(
            "train", str(declared.file), *set_again(declared.changes), "--preflight"
        )
        say(f"\nThe model was not built. To build and measure it: {preflight}")
    _check_clean(declared, reads)


def _show_plan(
    config: RunConfig,
    curriculum: Curriculum,
    sampler: Sampler,
    scans: Sequence[str],
    *,
    is_json: bool,
) -> list[Reads]:
    """Print a plan; return which of its steps read tokens that scans have found."""
    held_out = compare_held_out(config, curriculum)
    plan = sampler.plan()
    reads = reads_of(sampler, curriculum.streamers, scans_of(config, scans))
    text, devices = _with_devices(plan, config, sampler)
    more: dict[str, Any] = {
        "held_out": {name: asdict(each) for name, each in held_out.items()},
        **devices,
        "scans": [each.to_dict() for each in reads],
    }
    _show(text, plan.to_dict() | more, is_json=is_json)
    if not is_json:
        _show_notes(held_out, sampler.unread_masks)
        if reads:
            say("\n".join(["", *map(str, reads)]))
    return reads


def _check_clean(config: RunConfig, reads: Sequence[Reads]) -> None:
    """Raise Found if a step reads tokens that a scan has found, or not searched."""
    if not all(each.is_clean for each in reads):
        raise Found(
            f"{config.file}: steps read what a scan has found, or what it has not "
            "searched, as the lines above say; name the receipt under [without], and "
            "scan again what has grown"
        )


def _show_diff(
    done: int,
    old: tuple[RunConfig, Plan],
    new: tuple[RunConfig, Plan],
    *,
    is_json: bool,
) -> None:
    """Print how two plans differ; the runs have trained `done` steps."""
    diff, rates = old[1].diff(new[1]), _changed_rates(done, old, new)
    changes = {"step": diff.step, "changes": list(diff.changes), **rates}
    _show(diff, changes, is_json=is_json)
    if rates and not is_json:
        before, now = rates["learning_rates"]
        say(f"learning rate after {done:,} steps: {before:.4g} -> {now:.4g}")


def _with_devices(
    plan: Plan, config: RunConfig, sampler: Sampler
) -> tuple[str, dict[str, Any]]:
    """Add what each device holds, if the config gives the number of devices."""
    mesh = config.mesh
    if mesh is None or not mesh.axes or min(mesh.axes.values()) < 1:
        return str(plan), {}
    # JAX starts no device for this; a config without axes need not wait for its import.
    from roxxel_train.devices import device_shares

    try:
        shares = device_shares(
            mesh.axes,
            mesh.row_axes,
            sampler.phases,
            config.trainer.grad_accum_steps,
            strict=config.trainer.strict_sharding,
        )
        check_columns(config, sampler.phases)
    except ValueError as error:
        raise refused(config, error) from error
    return f"{plan}\n\n{shares}", {"devices": asdict(shares)}


def _changed_rates(done: int, *planned: tuple[RunConfig, Plan]) -> dict[str, Any]:
    """Return the learning rates of the next update, if two configs give different ones.

    Only the recipe of `roxxel.models` declares its schedule in the config.
    """
    found: list[float] = []
    for config, plan in planned:
        if config.model != RECIPE:
            return {}
        found.append(float(recipe_rate(config, plan.total_steps).at(done)))
    same = math.isclose(*found, rel_tol=1e-6)
    return {} if same else {"learning_rates": found}


def planned(
    config: RunConfig, state: dict[str, Any] | None = None
) -> tuple[Curriculum, Sampler]:
    """Return the curriculum of a config, and its sampler for a run of this state."""
    curriculum = open_curriculum(config)
    return curriculum, sampler_of(config, curriculum, state)


def _resolved(folder: Path | str) -> Path | str:
    return folder.resolve() if isinstance(folder, Path) else folder


def _other(path: Path) -> tuple[RunConfig, Path | str | None]:
    """Return the config to compare with, and the folder of its run."""
    if not path.is_dir():
        config = load_config(path)
        return config, config.run_folder
    run = RunFolder(path)
    run.check()
    used = used_config(run)
    if used is None:
        raise ConfigError(
            f"{path}: a program without a config started this run; give --diff a "
            "config file"
        )
    return used, path


def _show(what: str | PlanDiff, as_dict: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        say(json.dumps(as_dict))
    else:
        say(str(what))


def _show_notes(sets: Mapping[str, HeldOut], unread_masks: str | None) -> None:
    if sets:
        say()
    for name, each in sets.items():
        say(f"held-out set {name!r}: {each}" if name else f"held-out set: {each}")
        for doubt in each.notes:
            say(f"  note: {doubt}")
    if unread_masks:
        say(f"\nnote: {unread_masks}")
