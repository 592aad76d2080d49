"""Which checkpoint is restored: the newest one that is whole and undamaged.

Every file is compared with its digests before anything of a checkpoint is used. What a
look found sound counts as sound for the restore that follows it, unless a file was
written to or replaced in between.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import _integrity, _store
from roxxel_ckpt._description import FORMAT, read_meta, read_tree
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    brief,
)

if TYPE_CHECKING:
    import numpy as np
    from etils import epath

    from roxxel_ckpt._folder import Folder

_logger = logging.getLogger("roxxel_ckpt")


class Choice:
    """Chooses among the checkpoints of a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._sound: dict[int, dict[str, tuple[int, ...]] | None] = {}

    def choose(self, step: int | None) -> int | None:
        """Return the step to restore; None when the folder holds no checkpoint.

        Args:
            step: The step asked for; None for the newest sound one.

        Raises:
            CheckpointNotFoundError: The step asked for does not exist.
            CheckpointDamagedError: It is damaged, or no checkpoint is sound.
        """
        folder = self._folder
        if step is not None:
            check_exists(folder, step)
            problem = self._problem(step)
            if problem is not None:
                raise CheckpointDamagedError(
                    f"{folder.step_path(step)}: cannot be used, {problem}; "
                    "restore() without a step takes the newest sound one"
                )
            return step
        numbered = folder.numbered()
        for candidate in reversed(numbered):
            problem = self._problem(candidate)
            if problem is None:
                return candidate
            _logger.warning(
                "%s: cannot be used, %s; looking for an older checkpoint",
                folder.step_path(candidate),
                problem,
            )
        if numbered:
            raise CheckpointDamagedError(
                f"{folder}: none of its {len(numbered)} steps can be used; "
                "give another folder to start anew, or mend this one"
            )
        return None

    def forget(self) -> None:
        """Forget what was found sound: the next look reads every file again."""
        self._sound.clear()

    def _problem(self, step: int) -> str | None:
        """Return why a step cannot be restored, or None when it can."""
        place = self._folder.step_path(step)
        if not self._folder.is_ours(step):
            return "it is no checkpoint of roxxel-ckpt"
        try:
            if _integrity.has_digests(place):
                damage = self._damage(step, place)
                if damage is not None:
                    return damage
            else:
                _load_whole(place)
                _logger.warning(
                    "%s: has no digests, so damage cannot be ruled out; it can be "
                    "read and is used",
                    place,
                )
            written_as = read_meta(place)["format"]
        except CheckpointDamagedError as error:
            return str(error).removeprefix(f"{place}: ")
        except Exception as error:  # noqa: BLE001 - whatever stops reading is a reason
            return f"it cannot be read ({brief(error)})"
        if written_as > FORMAT:
            return (
                f"it has format {written_as} and this roxxel-ckpt reads up to "
                f"{FORMAT}, so install a newer one"
            )
        return None

    def _damage(self, step: int, place: epath.Path) -> str | None:
        # Taken before the files are read, so that any later change is seen.
        stamp = _integrity.stamp(place)
        if stamp is not None and self._sound.get(step) == stamp:
            return None
        damage = _integrity.find_damage(place)
        self._sound[step] = stamp if damage is None else None
        return damage


def check_exists(folder: Folder, step: int) -> None:
    """Refuse a step that the folder does not hold.

    Raises:
        CheckpointNotFoundError: It names the steps that there are.
    """
    if step not in folder.numbered():
        raise CheckpointNotFoundError(
            f"{folder}: has no step {step}; it holds {listed(folder.steps())}"
        )


def listed(steps: list[int]) -> str:
    """Return steps as words of a sentence, the first ten of them by number."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def _load_whole(place: epath.Path) -> None:
    """Read a checkpoint from end to end, one leaf at a time; raise what stops it."""
    read_meta(place)
    for name, spec in read_tree(place).items():
        if spec.is_stored:
            array: np.ndarray[Any, Any] = _store.read_arrays(place, {name: None})[name]
            if not spec.is_key and array.shape != spec.shape:
                raise CheckpointDamagedError(
                    f"{place}: {name} has shape {array.shape} instead of {spec.shape}"
                )
