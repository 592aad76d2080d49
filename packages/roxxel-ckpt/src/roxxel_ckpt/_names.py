"""The names of a checkpoint's files and leaves, and which files make a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COMMIT_FILE = "checkpoint.json"
STATE = "state"
METADATA_FILE = f"{STATE}/_METADATA"
ABANDONED = "abandoned"
# Version 0.1 described a step in two files.
V1_META_FILE = "meta/metadata"
V1_TREE_FILE = "tree/metadata"
V1_DIGESTS_FILE = "digests.json"
MANAGER_ITEM = "default"
# An Orbax manager writes these files and no `checkpoint.json`.
_OF_MANAGER = ("_CHECKPOINT_METADATA", f"{MANAGER_ITEM}/_METADATA", "metrics/metrics")


def is_of_manager(directory: Path) -> bool:
    """Return whether an Orbax manager wrote a step with the expected items.

    A damaged step may lack one of the files that describe the step.
    """
    return not _is_committed(directory) and _num_of_manager(directory) >= 2


def is_finished(directory: Path) -> bool:
    """Return whether a directory on a disk holds a finished step."""
    return _is_committed(directory) or _num_of_manager(directory) == len(_OF_MANAGER)


def is_step(directory: Path) -> bool:
    """Return whether a directory of any name holds a step, which may be damaged."""
    return _is_committed(directory) or is_of_manager(directory)


def _is_committed(directory: Path) -> bool:
    return any((directory / name).exists() for name in (COMMIT_FILE, V1_META_FILE))


def _num_of_manager(directory: Path) -> int:
    return sum((directory / name).exists() for name in _OF_MANAGER)


def escaped(text: str) -> str:
    """Escape the slashes in one part of a leaf's name; slashes separate the parts."""
    return text.replace("%", "%25").replace("/", "%2F")


def listed(steps: list[int]) -> str:
    """Return steps as text: the first ten, and the number of further steps."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def digests_file(process: int) -> str:
    """Return the path of a process's file of digests in the directory of a step."""
    return f"digests/{process}.json"
