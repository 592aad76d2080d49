"""`roxxel drill`: compares a run killed at random steps with an unbroken run.

A kill follows the row of a step in the run's log. The pipe of the run's standard error
wakes the drill, and ends with the run's last process. So the drill need not poll any
file.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from roxxel_store.command import Found, Progress, positive
from roxxel_store.screen import counted, say
from roxxel_train import RunFolder, RunFolderError

from roxxel.cli._arguments import (
    CONFIG_EXAMPLE,
    AtLeast1,
    Changes,
    ConfigFile,
    config_of,
)
from roxxel.cli._plan import planned
from roxxel.config import (
    ConfigError,
    RunConfig,
    config_text,
    with_total_steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

EPILOG = CONFIG_EXAMPLE

_NUM_LAST_LINES = 30
"""Number of last lines in the error about a failed start."""


def drill(
    config: ConfigFile,
    *,
    set_: Changes = (),
    steps: Annotated[int, positive, "K"] = 24,
    kills: AtLeast1 = 3,
    processes: AtLeast1 = 1,
    seed: Annotated[int | None, "N"] = None,
    scratch: Annotated[Path | None, "FOLDER"] = None,
) -> None:
    """Prove that a run survives being killed.

    The command trains the first steps of a config twice, in a scratch folder: once
    without a break, and once with kill -9 at random steps. After each kill, the same
    command continues the run. Then the logs, the digests of all batches, and all
    parameters and optimizer states are compared bit for bit. The run in the config's
    save_path, and its sinks, stay unchanged.

    Args:
        steps: Train the first K steps, with about 4 checkpoints.
        kills: Number of kills.
        processes: Train in N processes on this machine's CPU.
        seed: Seed that chooses the steps of the kills (default: random).
        scratch: A new folder for both runs, with space for their checkpoints (default:
            a temporary folder, removed if nothing differs).

    Raises:
        Found: Something differs.

    Example:
        roxxel drill run.toml
        roxxel drill run.toml --steps 40 --kills 5
    """
    shortened, total_steps = _shortened(config_of(config, set_), steps)
    seed = random.randrange(10**6) if seed is None else seed
    folder = _new_folder(scratch)
    both = _Drill(shortened, total_steps, processes, folder)
    say(
        f"{config}: the first {total_steps} steps, "
        f"{counted(kills, 'kill')}, seed {seed}, in {folder}"
    )
    try:
        unbroken = both.unbroken()
        killed = both.killed(unbroken, kills, random.Random(seed))
    except RunFolderError:
        say(f"{folder} keeps both runs")
        raise
    differences = [*_differences(unbroken, killed)]
    if differences:
        for line in differences:
            say(line)
        raise Found(
            f"{folder}: the killed run differs from the unbroken run, as the lines "
            "above say; on a GPU set XLA_FLAGS=--xla_gpu_deterministic_ops=true, and "
            "check that the model draws random numbers from its rngs only"
        )
    if scratch is None:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class _Drill:
    """Starts the two runs of a config in a scratch folder."""

    config: RunConfig
    total_steps: int
    processes: int
    scratch: Path

    def unbroken(self) -> RunFolder:
        """Train without a break; return the run."""
        began_s = time.monotonic()
        with self._started("unbroken") as start:
            start.finish()
        took_s = time.monotonic() - began_s
        say(f"unbroken: {counted(self.total_steps, 'step')} in {took_s:.1f} s")
        return RunFolder(self.scratch / "unbroken")

    def killed(
        self, unbroken: RunFolder, num_kills: int, chosen: random.Random
    ) -> RunFolder:
        """Train with kills; return the run."""
        rows = unbroken.rows()[0]
        step_s = statistics.median(row.get("step_s", 0.0) for row in rows)
        # A run that is killed before step 1 starts again at step 0.
        latest = max(1, self.total_steps - 2)
        steps = sorted(chosen.choices(range(latest), k=num_kills))
        num_done = 0
        for number, step in enumerate(steps, 1):
            with self._started("killed") as start:
                reached = start.kill_after(step, chosen.uniform(0, 2 * step_s))
            if num_done:
                say(start.resumed())
            if reached is None:
                break
            num_done += 1
            say(f"kill {number}: after step {reached}")
        else:
            with self._started("killed") as start:
                start.finish()
            say(start.resumed())
        if not num_done:
            raise RunFolderError(
                f"{self.scratch}: the run was complete before the first kill; give "
                "more --steps"
            )
        return RunFolder(self.scratch / "killed")

    @contextlib.contextmanager
    def _started(self, name: str) -> Generator[_Start]:
        """Start or continue one of the two runs; kill the run at the end."""
        file = self.scratch / f"{name}.toml"
        run = self.scratch / name
        config = replace(self.config, save_path=str(run))
        file.write_text(config_text(config), encoding="utf-8")
        command = [sys.executable, "-m", "roxxel", "train", str(file)]
        command += ["--processes", str(self.processes)]
        with Progress(f"{name} run") as progress:
            start = _Start(run, command, lambda step: progress(step, self.total_steps))
            try:
                yield start
            finally:
                start.end()


class _Start:
    """One start of a run, which reports steps in its log."""

    def __init__(
        self, run: Path, command: list[str], reach: Callable[[int], None]
    ) -> None:
        self._run = run
        self._starts_before = len(RunFolder(run).starts())
        self._reach = reach
        self._began_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - the user's own config
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._lines: list[str] = []
        self._from = 0
        self._first_step_s: float | None = None

    def resumed(self) -> str:
        """Return how this start continued the run."""
        said = f"  resumed from step {self._from}"
        if self._first_step_s is not None:
            said += f"; {self._first_step_s:.1f} s from the start to the first step"
        return said

    def finish(self) -> None:
        """Wait until the run is complete."""
        for _ in self._steps():
            pass
        self._check_complete()

    def kill_after(self, step: int, delay_s: float) -> int | None:
        """Kill the run after a step and a delay; return the last step in its log.

        None if the run was complete before.
        """
        for reached in self._steps():
            # The first line of the run's output shows that the run has begun, so with
            # `step` 0 the kill may follow this line.
            if reached >= step:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(delay_s)
                    break
                self._process.kill()
                return max([reached, *self._steps()])
        self._check_complete()
        return None

    def end(self) -> None:
        """Kill the run if it lives, and wait until all its processes have ended."""
        self._process.kill()
        assert self._process.stderr is not None  # noqa: S101 - a pipe
        self._process.stderr.read()  # ends when the last process closes the pipe
        self._process.stderr.close()
        self._process.wait()

    def _steps(self) -> Iterator[int]:
        """Yield the newest step in the log, after each line that the run writes."""
        assert self._process.stderr is not None  # noqa: S101 - a pipe
        for line in self._process.stderr:
            self._lines.append(line)
            yield self._newest_step()
        yield self._newest_step()

    def _newest_step(self) -> int:
        run = RunFolder(self._run)
        starts = run.starts()[self._starts_before :]
        if not starts:
            return 0
        self._from = starts[-1].step
        newest = run.newest_rows.get("train")
        reached = self._from if newest is None else max(self._from, newest["step"])
        if reached > self._from and self._first_step_s is None:
            self._first_step_s = time.monotonic() - self._began_s
        self._reach(reached)
        return reached

    def _check_complete(self) -> None:
        code = self._process.wait()
        if code:
            last = "".join(self._lines[-_NUM_LAST_LINES:])
            raise RunFolderError(f"a start of the run ended with code {code}: {last}")


def _shortened(config: RunConfig, steps: int) -> tuple[RunConfig, int]:
    """Return a config that trains only the first steps, and the number of these steps.

    The new config logs every step and saves often. The model's function gets the steps
    of the whole run, because its learning rate may depend on them. The new config has
    no sinks, because they would add to the logs of the real run.
    """
    config.needed("model", "save_path")
    if config.trainer.branch_from is not None:
        raise ConfigError(
            f"{config.file}: has branch_from, so its first steps are those of another "
            "run; drill the config without branch_from"
        )
    plan = planned(config)[1].plan()
    total_steps = min(steps, plan.total_steps)
    phases = tuple(
        replace(
            config.schedule.phases[phase.index],
            steps=min(phase.stop, total_steps) - phase.start,
            epochs=None,
            tokens=None,
        )
        for phase in plan.phases
        if phase.start < total_steps
    )
    skips = tuple(skip for skip in config.schedule.skips if skip[0] < total_steps)
    trainer = replace(
        config.trainer,
        profile=None,
        log_to=(),
        eval_every=max(1, total_steps // 3) if config.held_out else None,
        log_every=1,
        checkpoint_every=max(1, total_steps // 4),
    )
    shortened = replace(
        with_total_steps(config, plan.total_steps),
        relative_to=str(config.folder.resolve()),
        schedule=replace(config.schedule, phases=phases, skips=skips),
        trainer=trainer,
    )
    return shortened, total_steps


def _new_folder(path: Path | None) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix="roxxel-drill-"))
    if path.exists():
        raise RunFolderError(f"{path}: exists; give --scratch a new folder")
    path.mkdir(parents=True)
    return path.resolve()


def _differences(unbroken: RunFolder, killed: RunFolder) -> Iterator[str]:
    """Yield what differs between two runs; print what is equal."""
    from roxxel.runs.compared import (
        common_steps,
        compare_checkpoints,
        compare_rows,
    )

    rows = unbroken.rows()[0], killed.rows()[0]
    different, num_rows = compare_rows(*rows)
    yield from (f"log: {each}" for each in different)
    if not different:
        say(f"log: {num_rows} rows are equal")
        digests = [row["digest"] for row in rows[1] if "digest" in row]
        say(f"digest: {digests[-1]} in both runs")
    step = common_steps(unbroken, killed)[-1]
    different, num_leaves = compare_checkpoints(unbroken, killed, step)
    yield from (f"checkpoint: {each}" for each in different)
    if not different:
        say(f"checkpoint: {num_leaves} leaves equal, 0 differences")
