"""`roxxel sweep`: trains a proxy for each of many blends, and names the best blend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from roxxel_prepare.cli.options import as_part
from roxxel_store.command import check_one
from roxxel_store.screen import say

from roxxel.cli._arguments import shown_command
from roxxel.cli._launch import Launch, from_first, run_launched, tell

EPILOG = """\
an example of SWEEP; its paths are relative to the file:
  config = "run.toml"     # the run whose blend you want
  scale = 0.0625          # of each small run; or tokens = 2_000_000

  [drawn]                 # around the natural shares; or [grid], or [[blends]]
  number = 24
  each_phase = true       # or all phases of the run get one blend
all keys: python -c "import roxxel.sweeping as s; help(s.load_sweep)"

"""


def sweep(
    sweep: Annotated[Path, "a TOML file"],
    *,
    write: Annotated[Path | None, "FILE"] = None,
    part: Annotated[tuple[int, int] | None, as_part, "I/N"] = None,
    launch: Launch,
    typed: Sequence[str],
) -> None:
    """Find the best blend of your sources.

    The command trains a small run for each blend that SWEEP declares, at a share of the
    tokens of the big run, with each source read as often. It writes what they measured
    to sweep.csv and sweep.html, and fits laws that recommend a blend, or say why they
    cannot. Each run is an ordinary run in the folder runs/. The same command continues
    after a kill, and trains no finished run again.

    Args:
        write: Write the config of the big run with the recommended blend to FILE, with
            the predicted losses as comments.
        part: Train part I of N of the runs, from 0, such as one of a scheduler's array;
            afterwards, the command without --part writes the table.
        launch: Processes.

    Raises:
        Preempted: A signal stopped the run after a save.

    Example:
        roxxel sweep sweep.toml
    """
    # A part does not see all runs, so it has nothing to recommend.
    check_one({"--write": write, "--part": part})
    run_launched(launch, typed, partial(_sweep, sweep, write, part))


def _sweep(file: Path, write: Path | None, part: tuple[int, int] | None) -> None:
    from roxxel.sweeping import sweep

    progress = from_first(tell)
    found = sweep(file, part=part, say=progress)
    progress("")
    if part is not None:
        index, count = part
        progress(
            f"part {index} of {count} is trained: {len(found.table.rows)} of "
            f"{found.num_runs} runs are finished"
        )
        again = shown_command("sweep", str(file))
        progress(f"When all parts are, write the table: {again}")
        return
    from_first(say)(str(found))
    if write is not None:
        from_first(found.write_config)(str(write))
        from_first(say)(f"Train the big run: {shown_command('train', str(write))}")
