"""From where a run continues: its own checkpoint, another run's, or the beginning.

With `init_from`, the new run starts at step 0, with the weights of the checkpoint or
with weights that an object loads from elsewhere. With `branch_from`, the new run
continues from the whole state, at the step of the checkpoint. The other run may be
training: this module changes nothing in its folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flax import nnx
from roxxel_ckpt import Checkpointer, CheckpointMismatchError
from roxxel_store import roxxel_command
from roxxel_store.urls import bucket_url

from roxxel_train._files.folder import CHECKPOINTS
from roxxel_train._files.mirror import run_record
from roxxel_train._files.reference import Reference, parse_reference
from roxxel_train._log.logger import collected_warnings
from roxxel_train._step.step import restart
from roxxel_train.config import Weights
from roxxel_train.errors import RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum import Sampler, StateMismatch

    from roxxel_train.config import TrainConfig


_INNER = f"/{CHECKPOINTS}"


@dataclass(frozen=True)
class Past:
    """What a run goes on from.

    Attributes:
        name: What error messages call the run.
        step: Updates done.
        extra: What the checkpoint holds beside the arrays. Without a checkpoint, the
            data state and the held-out sets with which the run began, None if new.
        origin: The checkpoint of another run from which this run starts; None if the
            run has a checkpoint of its own.
    """

    name: str
    step: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    origin: Origin | Given | None = None

    @property
    def data(self) -> dict[str, Any] | None:
        """The data state; None for a new run."""
        return self.extra.get("data")

    @property
    def held_out(self) -> Mapping[str, Any] | None:
        """The held-out sets of earlier starts; None for a new run."""
        return self.extra.get("held_out")

    def mismatch(self, error: StateMismatch) -> RunMismatchError:
        """Return the error for a curriculum that differs in trained steps."""
        if self.origin is not None:
            return RunMismatchError(
                f"{self.origin}: the run there does not fit this curriculum: {error}; "
                "or branch from an earlier step"
            )
        return RunMismatchError(
            f"{self.name}: the run there does not fit this curriculum: {error}; or "
            "give another save_path"
        )


def find_past(
    config: TrainConfig,
    checkpointer: Checkpointer | None,
    name: str,
    record: dict[str, Any] | None,
    model: nnx.Module,
    optimizer: nnx.Optimizer[Any],
    signature: Any,
) -> Past:
    """Find from where a run continues.

    Args:
        config: The arguments of the trainer.
        checkpointer: The checkpoints of the run.
        name: What error messages call the run.
        record: Content of `run.json`; None before the first start.
        model: The live model.
        optimizer: The live optimizer.
        signature: Names, shapes and types of their arrays.

    Raises:
        RunMismatchError: This is another run, or the run from which it starts is
            another.
        CheckpointMismatchError: The newest checkpoint does not fit.
    """
    if config.branch_from is not None and record is not None:
        check_is_origin("branch_from", config.branch_from, record, name)
    newest = None if checkpointer is None else _newest(checkpointer)
    if checkpointer is not None and newest is not None:
        if record is None and config.branch_from is not None:
            _check_is_elsewhere(config.branch_from, checkpointer.checkpoint_path)
        step, extra = newest
        extra = extra or {}
        if extra.get("data") is None:
            raise RunMismatchError(
                f"the checkpoint of step {step} has no data state, so a trainer did "
                "not write this checkpoint and cannot continue its data; give another "
                "folder, and init_from= this one to start with its weights"
            )
        return Past(name, step, extra)
    if record is not None and record["model"] != signature:
        raise RunMismatchError(
            f"{name}: the run in this folder was started with a model or optimizer of "
            "other shapes and has no checkpoint yet; give another save_path"
        )
    origin = find_origin(
        {"init_from": config.init_from, "branch_from": config.branch_from},
        record,
        model,
        optimizer,
        config.timeout,
        name,
    )
    begun = {key: (record or {}).get(key) for key in ("data", "held_out")}
    if origin is not None and origin.data is not None:
        return Past(name, origin.step, {**begun, "data": origin.data}, origin)
    return Past(name, 0, begun, origin)


class Origin:
    """A checkpoint of another run.

    Attributes:
        option: `"init_from"` or `"branch_from"`.
        step: Step of the checkpoint.
        data: Data state from which a branch continues; None with `init_from`.
        record: The record for `run.json`: path, step, digest, and the id of the run.
        extra: The `extra` of the checkpoint, after `load`.
        warnings: Warnings of `load`, for the log of the new run.
    """

    def __init__(
        self,
        option: str,
        given: str | os.PathLike[str],
        model: nnx.Module,
        optimizer: nnx.Optimizer[Any],
        timeout_s: float,
    ) -> None:
        text = os.fspath(given)
        self._name = f"{option}={text!r}"
        bucket_url(text, option)  # raises if the URL cannot hold a run
        self.option = option
        self.extra: Mapping[str, Any] = {}
        self.warnings: list[str] = []
        self._model = model
        self._optimizer = optimizer
        path, step = _located(parse_reference(text), model)
        self._checkpointer = Checkpointer(
            path,
            model,
            optimizer if self.is_branch else None,
            timeout=timeout_s,
            read_only=True,
        )
        newest = self._checkpointer.latest_step
        # Without a step of ours, any step of another program is what went wrong.
        found = self._checkpointer.peek(None if newest is None else step)
        if found is None:
            raise FileNotFoundError(
                f"{self._name}: holds no checkpoint; "
                "give the folder of a run that has saved a checkpoint"
            )
        self.step, extra = found
        self._skipped = newest if step is None and newest != self.step else None
        self.data = (extra or {}).get("data") if self.is_branch else None
        if self.is_branch and self.data is None:
            raise RunMismatchError(
                f"{self._name}: step {self.step} has no data state, so a trainer did "
                "not write this checkpoint; give init_from= to start with its weights"
            )
        self.record = {
            "path": str(path).removesuffix(_INNER),
            "run_id": (run_record(path) or {}).get("id"),
            "step": self.step,
            "digest": self._checkpointer.digest(self.step),
        }

    def __str__(self) -> str:
        """Return the option as the user gave it."""
        return self._name

    @property
    def is_branch(self) -> bool:
        """Whether the new run continues at the step of the checkpoint."""
        return self.option == "branch_from"

    def load(self) -> None:
        """Load the weights, or the whole state for a branch, into the live objects.

        With `init_from`, random streams (`nnx.RngState`) keep the values of the new
        model, so two runs from the same weights may have different seeds. A branch
        needs no more device memory than training.

        Raises:
            CheckpointMismatchError: The checkpoint does not fit the live objects.
        """
        with collected_warnings("roxxel_ckpt") as self.warnings:
            if self.is_branch:
                try:
                    self._checkpointer.restore(self.step, strict=True, release=True)
                except CheckpointMismatchError as error:
                    raise CheckpointMismatchError(
                        f"{self}: {error.reason}",
                        "branch with the same model and optimizer, or give init_from= "
                        "to start with the weights that match",
                    ) from error
            else:
                streams = nnx.to_pure_dict(nnx.state(self._model, nnx.RngState))
                self._checkpointer.restore(self.step)
                nnx.update(self._model, streams)
                restart(self._model, self._optimizer)
        self.extra = self._checkpointer.extra or {}
        if self._skipped is not None:
            self.warnings.append(
                f"{self}: starts from step {self.step}, because step {self._skipped} "
                f"is damaged; `{roxxel_command('ckpt verify')}` says how"
            )


class Given:
    """Weights from outside, from which a new run starts; attributes as `Origin`."""

    option = "init_from"
    is_branch = False
    step = 0
    data: dict[str, Any] | None = None

    def __init__(
        self, weights: Weights, model: nnx.Module, optimizer: nnx.Optimizer[Any]
    ) -> None:
        self.extra: Mapping[str, Any] = {}
        self.warnings: list[str] = []
        self._weights, self._model, self._optimizer = weights, model, optimizer
        self.record = {
            "path": str(weights),
            "run_id": None,
            "step": None,
            "digest": None,
        }

    def __str__(self) -> str:
        """Return the option as the user gave it."""
        return f"init_from={str(self._weights)!r}"

    def load(self) -> None:
        """Load the weights into the live model, and reset the optimizer."""
        self._weights.load(self._model)
        restart(self._model, self._optimizer)


def _newest(checkpointer: Checkpointer) -> tuple[int, dict[str, Any] | None] | None:
    """Return step and `extra` of the newest sound checkpoint, if it fits."""
    try:
        return checkpointer.peek(must_fit=True)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(
            error.reason,
            "make the model and the optimizer that were saved, or give another "
            "save_path, with init_from= this run to take its weights alone",
        ) from error


def origin_records(
    origin: Origin | Given | None, sampler: Sampler
) -> dict[str, dict[str, Any] | None]:
    """Return what `run.json` records of `init_from` and `branch_from`.

    Metrics rows of a branch also count the tokens of its parent. The record has the
    tokens of the parent, so that readers of the rows can subtract them.
    """
    found: dict[str, dict[str, Any] | None] = {"init_from": None, "branch_from": None}
    if origin is None:
        return found
    record = origin.record
    if origin.is_branch:
        tokens = sampler.delivered_tokens(origin.step)
        record = {**record, "tokens_by_source": tokens}
    return {**found, origin.option: record}


def find_origin(
    options: Mapping[str, str | os.PathLike[str] | Weights | None],
    record: Mapping[str, Any] | None,
    model: nnx.Module,
    optimizer: nnx.Optimizer[Any],
    timeout_s: float,
    folder: str,
) -> Origin | Given | None:
    """Return the checkpoint from which a run without a checkpoint starts, if any.

    `options` has `init_from` and `branch_from` of the trainer. `record` is the content
    of `run.json` in `folder`, None before the first start. A run that has recorded its
    checkpoint starts from the same checkpoint again, even if the other run has newer
    ones.

    Raises:
        RunMismatchError: The run began with another checkpoint.
    """
    for option, given in options.items():
        begun = {} if record is None else record.get(option) or {}
        is_outside = bool(begun) and begun["step"] is None
        if isinstance(given, Weights) or is_outside:
            is_same = record is None or begun.get("path") == str(given)
            if not (isinstance(given, Weights) and is_same):
                what = begun.get("path", "the weights of its own model")
                raise RunMismatchError(
                    f"{folder}: began with {what} and has no checkpoint yet, but "
                    f"{option} is {given}; begin with the same weights, or give "
                    "another save_path"
                )
            return Given(given, model, optimizer)
        if record is None:
            if given is not None:
                return Origin(option, given, model, optimizer, timeout_s)
            continue
        if given is not None and option == "init_from":
            check_is_origin(option, given, record, folder)
        if begun:
            path = begun["path"]
            if given is not None:  # The other run may have moved.
                path = parse_reference(os.fspath(given)).path
            return _same(option, path, begun, model, optimizer, timeout_s, folder)
    return None


def _same(
    option: str,
    path: str | Path,
    begun: Mapping[str, Any],
    model: nnx.Module,
    optimizer: nnx.Optimizer[Any],
    timeout_s: float,
    folder: str,
) -> Origin:
    """Return the checkpoint with which a run began, from its record `begun`."""
    again = f"{folder}: began with step {begun['step']} of {begun['path']}"
    remedy = "give another save_path to begin with another checkpoint"
    try:
        origin = Origin(option, f"{path}@{begun['step']}", model, optimizer, timeout_s)
    except FileNotFoundError as error:
        raise RunMismatchError(
            f"{again}, which is gone ({error}), and has no checkpoint yet; {remedy}"
        ) from error
    if origin.record["digest"] != begun["digest"]:
        raise RunMismatchError(f"{again}, which was replaced since then; {remedy}")
    return origin


def _check_is_elsewhere(branch_from: str | os.PathLike[str], checkpoints: str) -> None:
    """Raise ValueError if a run would branch from its own folder of checkpoints."""
    given = parse_reference(os.fspath(branch_from))
    is_own = given.path == checkpoints.removesuffix(_INNER)
    if isinstance(given.path, Path):
        is_own = given.checkpoints.resolve() == Path(checkpoints).resolve()
    if is_own:
        raise ValueError(
            f"branch_from={str(branch_from)!r}: holds the checkpoints of this run; "
            "give the branch a folder of its own"
        )


def check_is_origin(
    option: str,
    given: str | os.PathLike[str],
    record: Mapping[str, Any],
    folder: str,
) -> None:
    """Raise RunMismatchError if a started run did not begin with a checkpoint.

    `given` is the value of `option`, which is `"init_from"` or `"branch_from"`.
    `record` is the content of `run.json` in `folder`. If the run of the checkpoint was
    moved or deleted, only the step is compared.
    """
    found, begun = parse_reference(os.fspath(given)), record.get(option)
    what = "began at step 0"
    if option == "init_from":
        what = "began with the weights of its own model"
    if begun is not None:
        if found.step in {None, begun["step"]} and _may_be_run(found, begun):
            return
        how = "is a branch" if option == "branch_from" else "began with the weights"
        what = f"{how} of step {begun['step']} of {begun['path']}"
    raise RunMismatchError(
        f"{option}={str(given)!r}: the run in {folder} {what}; leave {option} out to "
        "continue that run, or give another save_path to begin a run with this "
        "checkpoint"
    )


def _may_be_run(found: Reference, begun: Mapping[str, Any]) -> bool:
    """Return whether `found` may name the run from which a branch began.

    `begun` is the branch's record of this run. The result is True for the same path,
    for the same run id, and for checkpoints outside of a run's folder.
    """
    path = found.checkpoints.absolute() if isinstance(found.path, Path) else found.path
    if str(path).removesuffix(_INNER) == begun["path"]:
        return True
    record = run_record(path)
    return record is None or begun["run_id"] == record["id"]


def _located(found: Reference, model: nnx.Module) -> tuple[Path | str, int | None]:
    """Return the folder of checkpoints, and the step; None for the newest step."""
    path, step = found.path, found.step
    if isinstance(path, Path):
        return found.checkpoints.absolute(), step
    inner = path + _INNER
    return inner if Checkpointer(inner, model).steps() else path, step
