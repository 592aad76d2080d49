"""Names of checkpoints, such as `runs/a@100`: a folder, and a step after `@`.

This module does not import JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roxxel_ckpt.locations import split_step
from roxxel_store.urls import bucket_url, expanded

from roxxel_train._files.folder import CHECKPOINTS


@dataclass(frozen=True)
class Reference:
    """A folder with checkpoints, and a step; None for the newest step.

    Attributes:
        path: Folder of a run, or of checkpoints, or the URL of either.
        step: Step of the checkpoint.
    """

    path: Path | str
    step: int | None

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, on a disk."""
        inner = Path(self.path, CHECKPOINTS)
        return inner if inner.is_dir() else Path(self.path)


def parse_reference(text: str) -> Reference:
    """Return the folder and the step that a text names.

    The text is a path or URL of a run, of its folder `checkpoints`, or of a step in
    this folder; a suffix `@STEP` after a run or a folder of checkpoints names a step.
    If a folder with the whole name exists on a disk, such as `runs/a@100`, the text
    names this folder, and no step.

    Raises:
        ValueError: The text names a step twice.
    """
    is_url = bucket_url(text) is not None
    text, step = split_step(text)
    path = text.rstrip("/") if is_url else expanded(text)
    if isinstance(path, str):
        parent, _, name = path.rpartition("/")
        is_step = parent.endswith(f"/{CHECKPOINTS}") and _is_number(name)
    else:
        parent, name, is_step = path.parent, path.name, _is_step(path)
    if is_step and step is not None:
        raise ValueError(f"{text}@{step}: names a step twice; give {parent}@{step}")
    if is_step:
        path, step = parent, int(name)
    if isinstance(path, str):
        path = path.removesuffix(f"/{CHECKPOINTS}")
    return Reference(path, step)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _is_step(path: Path) -> bool:
    """Return whether a path is a step, and not a run whose name is a number."""
    if not (_is_number(path.name) and path.is_dir()):
        return False
    names = [entry.name for entry in path.iterdir()]
    has_steps = CHECKPOINTS in names or any(map(_is_number, names))
    return bool(names) and not has_steps
