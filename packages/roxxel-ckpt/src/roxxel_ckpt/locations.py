"""The step that a user names behind a folder of checkpoints.

This module does not import JAX.
"""

from __future__ import annotations

from roxxel_store.urls import expanded


def split_step(text: str) -> tuple[str, int | None]:
    """Return the folder and the step of `FOLDER@STEP`.

    Without a step, return the text and None. If a file or folder with the whole name
    exists on a disk, such as `runs/a@100`, the text names no step.

    Example:
        >>> split_step("runs/a@100"), split_step("runs/a")
        (('runs/a', 100), ('runs/a', None))
    """
    folder, _, digits = text.rpartition("@")
    is_step = digits.isascii() and digits.isdecimal()
    if folder and is_step and not expanded(text).exists():
        return folder, int(digits)
    return text, None
