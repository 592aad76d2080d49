"""Names of checkpoints, such as `runs/a@100`: a folder, and a step after `@`.

This module does not import JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roxxel_train._run.mirror import CHECKPOINTS


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

    The text is a path or URL of a run, of its folder `checkpoints`, or on a disk of a
    step in this folder; `@STEP` after a run or a folder of checkpoints names a step. An
    existing folder whose own name ends in `@STEP` is that folder.

    Raises:
        ValueError: The text names a step twice.
    """
    head, at, digits = text.rpartition("@")
    is_url = "://" in text
    step: int | None = None
    if at and head and _is_number(digits) and (is_url or not Path(text).exists()):
        text, step = head, int(digits)
    if is_url:
        return Reference(text, step)
    path = Path(text)
    if not _is_step(path):
        return Reference(path, step)
    if step is not None:
        raise ValueError(
            f"{text}@{step}: names a step twice; give {path.parent}@{step}"
        )
    return Reference(path.parent, int(path.name))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _is_step(path: Path) -> bool:
    """Return whether a path is a step: a run may also have a number as its name."""
    if not (_is_number(path.name) and path.is_dir()):
        return False
    names = [entry.name for entry in path.iterdir()]
    has_steps = CHECKPOINTS in names or any(map(_is_number, names))
    return bool(names) and not has_steps
