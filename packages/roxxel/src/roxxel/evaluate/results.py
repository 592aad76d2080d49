"""Results of `roxxel eval`, one file for each checkpoint: `RUN/evals/STEP.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.files import replace_file
from roxxel_store.records import RecordError, RecordKind
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER = "evals"

_KIND = RecordKind(
    "record of evaluations",
    1,
    remedy="remove the file and evaluate again",
    error=RunFolderError,
    needs=("step", "tasks"),
    is_sealed=False,
)


def add_evaluations(
    path: Path, step: int, versions: Mapping[str, str], tasks: Mapping[str, Any]
) -> None:
    """Write results to a file; replace those of the same tasks, keep all others.

    Args:
        path: The file; a missing folder is made.
        step: Step of the evaluated checkpoint.
        versions: Versions of the libraries that evaluated, by name.
        tasks: Results by task, as `roxxel.evaluate.harness.evaluate` returns them.

    Raises:
        RunFolderError: The file holds something else, or results of another step.
        OSError: The file cannot be read or written.
    """
    old: dict[str, Any] = {}
    if path.exists():
        record = _KIND.read(path)
        if record["step"] != step:
            raise RunFolderError(
                f"{path}: holds results of step {record['step']!r:.20}, not of step "
                f"{step}; give another file"
            )
        old = record["tasks"]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"step": step, "versions": dict(versions), "tasks": {**old, **tasks}}
    replace_file(path, _KIND.to_bytes(body))


def evaluations_of(run: Path) -> dict[int, dict[str, Any]]:
    """Return the results by task of each step, from the local folder of a run.

    Files that cannot be read, or are damaged, are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    folder = run / FOLDER
    if not folder.is_dir():
        return found
    for path in sorted(folder.glob("*.json")):
        try:
            record = _KIND.read(path)
        except (OSError, RecordError, RunFolderError):
            continue
        step, tasks = record["step"], record["tasks"]
        if type(step) is int and _is_whole(tasks):
            found[step] = tasks
    return dict(sorted(found.items()))


def _is_whole(tasks: Any) -> bool:
    """Return whether every metric of every task has a number and an error."""
    try:
        numbers = [
            number for task in tasks.values() for number in task["metrics"].values()
        ]
        return all(
            isinstance(number["value"], float)
            and isinstance(number["stderr"], float | None)
            for number in numbers
        )
    except (AttributeError, KeyError, TypeError):
        return False
