"""What a run must agree with: its own past, or the run that its weights come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import StateMismatch

from roxxel_train._run_folder import CHECKPOINTS
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from roxxel_ckpt import RestoreReport
    from roxxel_curriculum import Curriculum, Sampler

    from roxxel_train._run_folder import RunFolder


def newest_state(
    checkpointer: Checkpointer | None, folder: RunFolder | None, signature: str
) -> tuple[int, dict[str, Any] | None]:
    """Return the updates done and the state of the data of the run so far.

    Args:
        checkpointer: Of the run.
        folder: Of the run.
        signature: Of the model, which a run without checkpoints must fit.

    Returns:
        0 and None where nothing has run yet.

    Raises:
        RunMismatchError: The folder holds something else.
    """
    newest = None if checkpointer is None else checkpointer.peek()
    if newest is not None:
        step, extra = newest
        data = (extra or {}).get("data")
        if data is None:
            raise RunMismatchError(
                f"the checkpoint of step {step} holds no state of the data, so a "
                "trainer did not write it; give another save_path"
            )
        return step, data
    if folder is not None and folder.record is not None:
        folder.check_model(signature)
        return 0, folder.record["data"]
    return 0, None


def bind(
    curriculum: Curriculum,
    seed: int,
    fields: Iterable[Any],
    past: tuple[int, dict[str, Any] | None],
    place: object,
    check: Literal["headers", "blocks"],
) -> Sampler:
    """Bind the curriculum to what the run has already seen.

    Args:
        curriculum: As it is declared now.
        seed: Of the order of the data.
        fields: What a batch holds.
        past: From `newest_state`.
        place: Names the run in errors.
        check: What is checked of the data that is read.

    Raises:
        RunMismatchError: The past differs from what the curriculum says of it.
    """
    step, data = past
    try:
        sampler = curriculum.sampler(seed, data, fields, check)
    except StateMismatch as error:
        raise RunMismatchError(
            f"{place}: the run there does not fit this curriculum: {error}; "
            "or give another save_path"
        ) from error
    if step > sampler.total_steps:
        raise RunMismatchError(
            f"the run has done {step} steps but the curriculum has only "
            f"{sampler.total_steps}; give it as many or more, or another save_path"
        )
    return sampler


def take_weights(model: nnx.Module, init_from: str | os.PathLike[str]) -> RestoreReport:
    """Put the newest checkpoint of another run into the model alone.

    Its streams of random numbers stay those that it was made with, so that runs from
    the same weights may differ in their seeds.

    Args:
        model: Takes the values that fit; the rest stays fresh, which is said.
        init_from: Folder of a run, or of checkpoints.

    Returns:
        Which checkpoint it was, and what was taken of it.

    Raises:
        FileNotFoundError: There is no checkpoint.
        roxxel_ckpt.CheckpointError: It is damaged, or nothing in it fits the model.
    """
    path = Path(init_from)
    inner = path / CHECKPOINTS
    folder = inner if inner.is_dir() else path
    with Checkpointer(folder, model) as other:
        if other.peek() is None:
            raise FileNotFoundError(
                f"init_from={str(path)!r}: holds no checkpoint; "
                "give the folder of a run that has saved one"
            )
        streams = nnx.to_pure_dict(nnx.state(model, nnx.RngState))
        other.restore()
        nnx.update(model, streams)
    assert other.report is not None  # noqa: S101 - a checkpoint was restored
    return other.report
