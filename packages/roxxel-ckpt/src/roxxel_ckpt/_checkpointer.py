"""Checkpointer: save in the background, restore what is sound, keep what matters."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
)

from roxxel_ckpt import _background, _saving
from roxxel_ckpt._background import BackgroundSave, SaveRecord
from roxxel_ckpt._choice import Choice, check_exists
from roxxel_ckpt._description import (
    Description,
    describer,
    metrics_from_json,
    metrics_of_all,
    read_meta,
)
from roxxel_ckpt._folder import Folder
from roxxel_ckpt._leaves import LiveState
from roxxel_ckpt._processes import (
    Meeting,
    decided_by_first,
    is_first_process,
    is_so_on_any,
)
from roxxel_ckpt._restoring import read_into
from roxxel_ckpt._retention import Retention
from roxxel_ckpt._store import Store, versions
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from roxxel_ckpt._compare import RestoreReport
    from roxxel_ckpt._description import Described

_logger = logging.getLogger("roxxel_ckpt")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _one_at_a_time(
    method: Callable[Concatenate[Checkpointer, _Arguments], _Result],
) -> Callable[Concatenate[Checkpointer, _Arguments], _Result]:
    """Have a method run in one thread at a time, over all methods of an object."""

    @functools.wraps(method)
    def exclusive(
        self: Checkpointer, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        with self._lock:  # pyright: ignore[reportPrivateUsage] - of this very class
            return method(self, *args, **kwargs)

    return exclusive


class Checkpointer:
    """Saves a model and its optimizer in the background, restores them bit for bit.

    Step `k` lies in `<checkpoint_path>/<k>/`, in Orbax's format. Everything that the
    NNX objects hold goes along: parameters, optimizer state, RNG keys and counts,
    batch statistics and any other Variable. A checkpoint appears only when it is
    complete and its digests are written; they are checked before it is used.

    With several processes every process makes the same calls in the same order.

    Args:
        checkpoint_path: Folder of the checkpoints, made by the first save; those of a
            trained run are in `checkpoints` under its own folder. Constructing a
            checkpointer touches no file; what a killed process left half-written is
            removed by the first `save` or `restore`.
        model: Flax NNX object; its live arrays are read by `save` and replaced by
            `restore`, in their shardings.
        optimizer: Flax NNX object, or None to leave the optimizer out: then `save`
            writes the model alone, and `restore` reads the model alone.
        max_to_keep: Number of newest checkpoints to keep; None keeps all.
        timeout: Longest wait for a background write, in seconds.
        best_metric: Key of `metrics_dict` by which checkpoints are compared.
        best_mode: `"min"` when lower is better, `"max"` when higher is.
        keep_best: Number of best checkpoints to keep besides the newest.
        keep_every: Checkpoints at multiples of this step stay for ever.
        on_busy: What `save` does while an earlier one is being written: `"wait"` for
            it, or `"skip"` and return False.

    Raises:
        ValueError: An argument is out of its range, or Orbax cannot write to the URL.
        NotADirectoryError: `checkpoint_path` is a file.
    """

    def __init__(
        self,
        checkpoint_path: str | os.PathLike[str],
        model: Any,
        optimizer: Any = None,
        max_to_keep: int | None = 3,
        timeout: float = 1000,
        *,
        best_metric: str = "loss",
        best_mode: Literal["min", "max"] = "min",
        keep_best: int = 1,
        keep_every: int | None = None,
        on_busy: Literal["wait", "skip"] = "wait",
    ) -> None:
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"timeout must be above 0 seconds, and finite, got {timeout}"
            )
        if on_busy not in {"wait", "skip"}:
            raise ValueError(f'on_busy must be "wait" or "skip", got {on_busy!r}')
        self._retention = Retention(
            max_to_keep, keep_best, keep_every, best_metric, best_mode
        )
        self._folder = Folder(checkpoint_path)
        self._choice = Choice(self._folder)
        if self._folder.path.exists() and not self._folder.path.is_dir():
            raise NotADirectoryError(
                f"{self._folder}: checkpoint_path is a file; give a folder"
            )
        self._model, self._optimizer = model, optimizer
        self._timeout_s, self._on_busy = timeout, on_busy
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._meeting: Meeting | None = None
        self._flight: BackgroundSave | None = None
        # The step that the live state descends from; None before the first call.
        self._position: int | None = None
        self._extra: dict[str, Any] | None = None
        self._report: RestoreReport | None = None
        self._last: BackgroundSave | None = None

    @_one_at_a_time
    def save(
        self,
        step: int,
        metrics_dict: Mapping[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        force: bool = False,
        *,
        describe: Callable[[], Described] | None = None,
    ) -> bool:
        """Save the live state as a step; return once its arrays may be donated.

        Checkpoints of an abandoned future, newer than the step from which this
        run goes on, are moved to `abandoned/` first, which is said in one line.

        Args:
            step: Number of updates done, at least 0.
            metrics_dict: Numbers to keep with the step; None is left out. Without a
                finite value of `best_metric` the step is never the best.
            extra: Small JSON object to keep with the step.
            force: Replace the step if it exists.
            describe: Called once the arrays are copied, in place of the two: returns
                `(metrics_dict, extra)`, and what it raises gives the save up. So a
                caller need not wait for the numbers of a step before the device is
                done with it, and may still refuse what they show. It must not save.

        Returns:
            True when a checkpoint is being written; False when the step exists
            already, or when an earlier save is not done and `on_busy="skip"`.

        Raises:
            CheckpointWriteError: This save cannot begin, or the one before failed in
                the background.
            CheckpointTimeoutError: The one before is not done after `timeout` seconds.
            CheckpointError: An array was donated to a computation and is gone.
            TypeError: `metrics_dict` holds something else than numbers, `extra` is no
                JSON, or a Variable holds something that cannot be saved.
            ValueError: The step is negative, or `describe` stands beside what it
                replaces.
            Exception: What `describe` raised.
        """
        started_at = time.perf_counter()
        step = index(step)
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        describe_step = describer(step, versions(), metrics_dict, extra, describe)
        if self._skips():
            return False
        self._settle()
        live = LiveState(self._model, self._optimizer)
        arrays = live.to_stored()
        if not arrays:
            raise CheckpointError(
                f"{self._folder}: the model holds no arrays, so nothing can be saved"
            )
        with contextlib.ExitStack() as held:
            folder, position = self._folder, self._position
            meeting = _saving.admit(folder, step, position, held, force=force)
            if meeting is None:
                return False
            if self._meeting is not None:
                self._meeting.forget()
            store, self._store = self._store or Store(self._timeout_s), None
            self._meeting = meeting
            _saving.begin(store, folder, step, meeting, arrays)
            try:
                description = Description(describe_step(), live.specs)
            except BaseException as error:
                rest = functools.partial(_saving.give_up, store, folder, meeting, error)
                self._flight = self._in_background(rest, step, held, started_at)
                raise
            self._store, self._position = store, step
            rest = functools.partial(
                _saving.finish,
                store,
                folder,
                step,
                meeting,
                description,
                self._retention,
                self._timeout_s,
            )
            flight = self._in_background(rest, step, held, started_at)
            self._flight = self._last = flight
        if not _background.FINISHES_AT_EXIT:
            self.wait()
        return True

    @_one_at_a_time
    def restore(
        self,
        step: int | None = None,
        *,
        strict: bool = False,
        on_mismatch: Literal["error", "keep"] = "error",
        rename: Mapping[str, str] | None = None,
    ) -> int:
        """Put a checkpoint into the live model and optimizer, in their shardings.

        Without a step the newest sound checkpoint is taken; a damaged one is passed
        over, which is said in one line. What the checkpoint lacks keeps its fresh
        value, and what only the checkpoint has is dropped: see `report`. The live
        objects change only when everything was read.

        Args:
            step: Step to restore; None for the newest sound one.
            strict: Refuse any difference between checkpoint and live objects.
            on_mismatch: What to do about a leaf of another shape or dtype: `"error"`,
                or `"keep"` the live value.
            rename: New by old path of parts of the model, such as
                `{"encoder": "backbone/encoder"}`; optimizer moments go along.

        Returns:
            The restored step; 0 when the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The step asked for does not exist, or the folder
                has no steps but a folder `checkpoints` that does.
            CheckpointDamagedError: It is damaged, or no checkpoint is sound.
            CheckpointMismatchError: It does not fit the live objects.
            CheckpointWriteError: A save before failed in the background.
            CheckpointTimeoutError: A save before is not done after `timeout` seconds.
        """
        if on_mismatch not in {"error", "keep"}:
            raise ValueError(
                f'on_mismatch must be "error" or "keep", got {on_mismatch!r}'
            )
        self._settle()
        if is_first_process():
            self._clean()
        chosen = self._choose(step)
        self._choice.forget()
        if chosen is None:
            self._folder.check_not_of_a_run()
            return 0
        place = self._folder.step_path(chosen)
        extra = read_meta(place)["extra"]
        self._report = read_into(
            LiveState(self._model, self._optimizer),
            place,
            chosen,
            strict=strict,
            on_mismatch=on_mismatch,
            rename=rename,
        )
        self._position, self._extra = chosen, extra
        if not self._report.is_exact and is_first_process():
            _logger.warning("%s: %s", self._folder, self._report)
        return chosen

    @_one_at_a_time
    def peek(self, step: int | None = None) -> tuple[int, dict[str, Any] | None] | None:
        """Return step and `extra` of the checkpoint that `restore` would take.

        The live objects stay as they are. A `restore` that follows does not read the
        files once more to check them, unless one was written to in between.

        Args:
            step: Step to look at; None for the newest sound one.

        Returns:
            None when the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The step asked for does not exist.
            CheckpointDamagedError: It is damaged, or no checkpoint is sound.
            CheckpointWriteError: A save before failed in the background.
            CheckpointTimeoutError: A save before is not done after `timeout` seconds.
        """
        self._settle()
        chosen = self._choose(step)
        if chosen is None:
            return None
        return chosen, read_meta(self._folder.step_path(chosen))["extra"]

    @property
    def extra(self) -> dict[str, Any] | None:
        """The JSON that was saved with the step last restored; None without one."""
        return self._extra

    @property
    def report(self) -> RestoreReport | None:
        """What the last `restore` did with every leaf; None before the first."""
        return self._report

    @property
    def model(self) -> Any:
        """The object whose arrays are saved and restored."""
        return self._model

    @property
    def latest_step(self) -> int | None:
        """The newest complete checkpoint; one still being written does not count."""
        return max(self.steps(), default=None)

    @property
    def best_step(self) -> int | None:
        """The complete checkpoint with the best metric; None when none has a value."""
        return next(iter(self._retention.ranked(metrics_of_all(self._folder))), None)

    @property
    def last_save(self) -> SaveRecord | None:
        """How long the last save took; its total comes once it is complete."""
        return self._last and self._last.record

    def steps(self) -> list[int]:
        """Return the complete checkpoints in the folder, oldest first."""
        return self._folder.steps()

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics saved with a step.

        Raises:
            CheckpointNotFoundError: The step does not exist.
            CheckpointDamagedError: Its description cannot be read.
        """
        check_exists(self._folder, step)
        return metrics_from_json(read_meta(self._folder.step_path(step)))

    @_one_at_a_time
    def wait(self) -> None:
        """Wait until the save in flight is complete.

        Raises:
            CheckpointWriteError: It failed. Earlier checkpoints are untouched.
            CheckpointTimeoutError: It is not done after `timeout` seconds; it goes on,
                so waiting again is possible.
        """
        flight = self._flight
        if flight is None:
            return
        try:
            flight.wait()
        finally:
            if flight.has_ended:
                self._flight = None
                if flight.has_failed:
                    self._store = None

    @_one_at_a_time
    def close(self) -> None:
        """Wait for the save in flight and release what saving needs.

        A later call of any method works again.

        Raises:
            CheckpointWriteError: The save in flight failed.
            CheckpointTimeoutError: It is not done after `timeout` seconds.
        """
        self.wait()
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except CheckpointError as error:
            if exc is None:
                raise
            # The error on its way out is the one that the caller needs to see.
            _logger.error("%s", error)  # noqa: TRY400

    def _in_background(
        self,
        rest: Callable[[], None],
        step: int,
        held: contextlib.ExitStack,
        started_at: float,
    ) -> BackgroundSave:
        """Have a save end in the background, and then what is held for it released."""
        release = held.pop_all()

        def run() -> None:
            with release:
                rest()

        return BackgroundSave(
            self._folder,
            step,
            self._timeout_s,
            run,
            blocking_s=time.perf_counter() - started_at,
            started_at=started_at,
        )

    def _skips(self) -> bool:
        """Return whether a save is given up because an earlier one is not done."""
        if self._on_busy == "wait":
            return False
        flight = self._flight
        busy = flight is not None and not flight.has_ended
        return bool(decided_by_first(lambda: int(busy)))

    def _settle(self) -> None:
        """Wait for the save in flight; raise on all processes if one has to."""
        failure = None
        try:
            self.wait()
        except (CheckpointTimeoutError, CheckpointWriteError) as error:
            failure = error
        failed = is_so_on_any(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise CheckpointWriteError(
                f"{self._folder}: the save before failed on another process; "
                "its own error says why"
            )

    def _choose(self, step: int | None) -> int | None:
        """Return the step to restore, the same on all processes; None without any."""

        def choose() -> int:
            chosen = self._choice.choose(None if step is None else index(step))
            return -1 if chosen is None else chosen

        chosen = decided_by_first(choose)
        return None if chosen < 0 else chosen

    def _clean(self) -> None:
        """Remove half-written steps, unless the process that writes them lives."""
        with contextlib.suppress(OSError), self._folder.lock() as held:
            # Without locks nobody knows whether another process writes there now.
            if held and self._folder.is_local:
                self._folder.clean()
