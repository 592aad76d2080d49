"""`roxxel ls`: lists runs, with the status of each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_curriculum.run_log import EVAL_LOSS
from roxxel_store.command import Progress
from roxxel_store.records import number
from roxxel_store.screen import aligned, say
from roxxel_store.urls import url_of
from roxxel_train import RunFolder, RunFolderError

from roxxel.cli._arguments import Json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEEPEST = 3
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
# A run with a short name fits a terminal of 80 columns.
_COLUMNS = (
    "run",
    "status",
    "step",
    "saved",
    "loss",
    "held-out",
    "tok/s",
    "kept",
    "age",
)


def read_status(run: RunFolder) -> dict[str, Any]:
    """Return the status of a run, from its log and its checkpoints, as `--json` has it.

    What the log does not record is None. `goodput` is the share of the wall time in
    steps that are part of the result, as logged at the end of the newest start.

    >>> from pathlib import Path
    >>> from roxxel_train import RunFolder
    >>> row = '{"kind": "train", "step": 3, "loss": 2.5}'
    >>> _ = Path("metrics.jsonl").write_text(row)
    >>> status = read_status(RunFolder("."))
    >>> status["status"], status["step"], status["loss"]
    ('stopped', 3, 2.5)
    """
    newest = run.newest_rows
    train, evaluation = newest.get("train", {}), newest.get("eval", {})
    times = [str(row["time"]) for row in newest.values() if "time" in row]
    worked = [start for start in run.starts() if not start.is_idle]
    return {
        "run": str(run),
        "status": run.status,
        "step": run.step,
        "saved_step": run.saved_step,
        "total_steps": run.total_steps,
        "loss": number(train.get("loss")),
        "eval_loss": number(evaluation.get(EVAL_LOSS)),
        "tokens_per_s": number(train.get("tokens_per_s")),
        "time": max(times, default=None),
        "goodput": worked[-1].kept if worked else None,
    }


def ls(
    folders: Sequence[Annotated[str, "FOLDER"]] = (".",), *, json_: Json = False
) -> None:
    """List runs: how each stands, its losses and its age.

    A line has status, steps done, the step of the newest checkpoint (from which a start
    would continue), training loss, held-out loss, tokens a second, the share of the
    wall time in steps that were kept (not lost to a restart, not idle; the run logs it
    at its end), and the age of the newest row of the log. Folders that hold runs are
    searched up to three levels deep.

    Args:
        folders: A run, its URL, or a folder that holds runs (default: this folder).

    Example:
        roxxel ls runs
    """
    with Progress(f"reading {' '.join(folders)}"):
        runs = [run for name in folders for run in _runs_in(name)]
        rows = sorted(map(read_status, runs), key=lambda row: row["time"] or "")
    if json_:
        say(json.dumps(rows))
        return
    cells = [_COLUMNS, *map(_cells, rows)]
    for line in aligned(cells, right=range(2, len(_COLUMNS))):
        say(line)


def _runs_in(name: str) -> Sequence[RunFolder]:
    """Return the run that a text names, or the runs in the folder that it names.

    Raises:
        RunFolderError: There is no such folder, or it holds no run.
    """
    top = RunFolder(name)
    if url_of(name) is not None or not top.path.is_dir():
        top.check()
    runs = [*_found(top, _DEEPEST)]
    if not runs:
        raise RunFolderError(
            f"{name}: neither a run nor a folder of runs; give the save_path of a run, "
            "or a folder above it"
        )
    return runs


def _found(folder: RunFolder, deepest: int) -> Iterator[RunFolder]:
    """Yield the runs in a folder; skip subfolders that cannot be read, or are gone."""
    try:
        names = [] if folder.holds_run else _folders_in(folder.path)
    except OSError:
        if deepest == _DEEPEST:
            raise
        return
    if folder.holds_run:
        yield folder
    elif deepest:
        for name in names:
            yield from _found(RunFolder(Path(folder.location, name)), deepest - 1)


def _folders_in(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        names = [each.name for each in entries if each.is_dir()]
    return sorted(name for name in names if not name.startswith("."))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    total = row["total_steps"]
    return (
        row["run"],
        row["status"],
        f"{row['step']:,}" + ("" if total is None else f"/{total:,}"),
        _number(row["saved_step"], ",d"),
        _number(row["loss"], ".4f"),
        _number(row["eval_loss"], ".4f"),
        _number(row["tokens_per_s"], ",.0f"),
        _number(row["goodput"], ".0%"),
        _age(row["time"]),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _age(time: str | None) -> str:
    """Return the age of a time, in its largest unit; `-` if it is unreadable."""
    try:
        then = datetime.fromisoformat(time or "")
    except ValueError:
        return "-"
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= each[0]), (1, "s"))
    return f"{seconds // size} {unit}"
