"""`roxxel plan`: what a config file will read, before any step and without JAX."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel.cli._words import CONFIG_EXAMPLE
from roxxel.config import (
    ConfigError,
    RunConfig,
    load_config,
    newest_config,
    open_curriculum,
)
from roxxel.run_files import check_run, newest_state

if TYPE_CHECKING:
    import argparse

    from roxxel_curriculum import Plan, PlanDiff

DESCRIPTION = """\
Show what a config file will read: tokens and epochs of each source in each
phase, where a source runs out, what is left unread. No tokens are read and no
accelerator is started. Where the run has begun already, its past is shown as
it was, and a config that does not fit it is refused here.
"""

EPILOG = CONFIG_EXAMPLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument(
        "--diff",
        type=Path,
        metavar="OTHER",
        help=(
            "show what CONFIG changes, and from which step on: against another config "
            "file, or against a run's folder"
        ),
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it too, such as plan.png"
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def run(options: argparse.Namespace) -> None:
    """Print the plan of a config, or what it changes."""
    config = load_config(options.config)
    if options.diff is None:
        folder = config.run_folder
        state = None if folder is None else newest_state(folder)
        plan = planned(config, state)
        _show(plan, plan.to_dict(), options)
    else:
        folder = options.diff
        other, state = _other(folder)
        plan = planned(config, state)
        diff = planned(other, state).diff(plan)
        _show(diff, {"step": diff.step, "changes": list(diff.changes)}, options)
    if state is not None and not options.json:
        print(f"\n{folder}: {state['step']:,} steps of this run are done.")
    if options.plot is not None:
        _draw(plan, options.plot)


def planned(config: RunConfig, state: dict[str, Any] | None = None) -> Plan:
    """Return the plan of a config.

    Args:
        config: What to plan.
        state: Of a run that goes on with it.

    Raises:
        ConfigError: The schedule cannot be met, or has another past than the run.
    """
    curriculum = open_curriculum(config)
    try:
        return curriculum.plan(config.seed, state)
    except ValueError as error:
        raise ConfigError(f"{config.file}: {error}") from error


def _other(path: Path) -> tuple[RunConfig, dict[str, Any] | None]:
    """Return the config to compare with, and the state of its run."""
    if not path.is_dir():
        return load_config(path), None
    check_run(path)
    used = newest_config(path)
    if used is None:
        raise ConfigError(
            f"{path}: holds no config.toml, so `roxxel train` did not start this run; "
            "give --diff a config file"
        )
    return load_config(used), newest_state(path)


def _show(
    what: Plan | PlanDiff, as_dict: dict[str, Any], options: argparse.Namespace
) -> None:
    if options.json:
        print(json.dumps(as_dict))
    elif sys.stdout.isatty() and hasattr(what, "__rich__"):
        import rich

        rich.print(what)
    else:
        print(what)


def _draw(plan: Plan, file: Path) -> None:
    try:
        plan.plot(file)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'--plot {file}: needs matplotlib; pip install "roxxel[plot]"'
        ) from error
    except ValueError as error:
        raise ConfigError(f"--plot {file}: {error}") from error
