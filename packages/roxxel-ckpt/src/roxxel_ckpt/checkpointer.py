"""Checkpointer: save in the background, restore what is sound, keep what matters."""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
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

from roxxel_ckpt._description import (
    Description,
    describer,
    descriptions,
    read_description,
)
from roxxel_ckpt._folder import Folder
from roxxel_ckpt._leaves import LiveState
from roxxel_ckpt._orbax import versions
from roxxel_ckpt._processes import Channel, is_first_process
from roxxel_ckpt._restore import Options, Restorer, not_found
from roxxel_ckpt._retention import Retention
from roxxel_ckpt._save import Save, SaveRecord, make_room, wait_for_others
from roxxel_ckpt.errors import CheckpointError, CheckpointWriteError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from roxxel_ckpt._compare import RestoreReport
    from roxxel_ckpt._description import Described

_logger = logging.getLogger("roxxel_ckpt")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
# All checkpointers of a process share one channel, so the processes may construct
# different numbers of them.
_channel = Channel("calls")


def _one_at_a_time(
    method: Callable[Concatenate[Checkpointer, _Arguments], _Result],
) -> Callable[Concatenate[Checkpointer, _Arguments], _Result]:
    """Run at most one of the decorated methods of an object at a time."""

    @functools.wraps(method)
    def exclusive(
        self: Checkpointer, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        with self._lock:  # pyright: ignore[reportPrivateUsage] - of this very class
            return method(self, *args, **kwargs)

    return exclusive


class Checkpointer:
    """Saves a model and its optimizer in the background, restores them bit for bit.

    The directory `<checkpoint_path>/<k>/` holds step `k`. A checkpoint holds everything
    that the NNX objects hold: parameters, optimizer state, RNG keys and counts, batch
    statistics and every other Variable. A checkpoint appears only when it is complete,
    with digests of its files. Each process writes and digests its own arrays, and
    verifies the files that it reads before it uses them.

    On several processes every process makes the same calls in the same order, and
    `checkpoint_path` is a folder that all of them see. The processes agree over the
    coordination service of `jax.distributed`, so no call needs the devices.

    Args:
        checkpoint_path: Folder of the checkpoints; a run of the trainer has them in its
            subfolder `checkpoints`. The constructor touches no file. The first `save`
            makes the folder, and removes what a killed process left half-written.
        model: Flax NNX object. `save` reads its live arrays, and `restore` replaces
            them, in their shardings.
        optimizer: Flax NNX object, or None: then `save` writes the model alone, and
            `restore` reads the model alone.
        max_to_keep: Number of newest checkpoints to keep; None keeps all.
        timeout: Longest wait for a background write or another process, in seconds.
        best_metric: Key of `metrics_dict` that compares checkpoints. None compares by
            the held-out loss `"eval_loss"` if any checkpoint has it, else by
            `"loss_mean"` (the mean since the checkpoint before), else by `"loss"`.
        best_mode: `"min"` when lower is better, `"max"` when higher is.
        keep_best: Number of best checkpoints to keep besides the newest.
        keep_every: Permanent checkpoints: those at multiples of this number of steps,
            or a text such as `"6h"` for one in each such duration (units s, m, h, d).
        on_busy: What `save` does while an earlier save is in flight: `"wait"` for it,
            or `"skip"` and return False.

    Raises:
        ValueError: An argument is out of its range, or `checkpoint_path` is a URL.
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
        best_metric: str | None = None,
        best_mode: Literal["min", "max"] = "min",
        keep_best: int = 1,
        keep_every: int | str | None = None,
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
        if self._folder.path.exists() and not self._folder.path.is_dir():
            raise NotADirectoryError(
                f"{self._folder}: checkpoint_path is a file; give a folder"
            )
        self._model, self._optimizer = model, optimizer
        self._timeout_s, self._on_busy = timeout, on_busy
        self._restorer = Restorer(self._folder, _channel, timeout)
        self._lock = threading.RLock()
        self._flight: Save | None = None
        # The last save that began, in flight or not.
        self._last: Save | None = None
        # The step that the live state descends from; None before the first call.
        self._position: int | None = None
        self._extra: dict[str, Any] | None = None
        self._report: RestoreReport | None = None

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

        Checkpoints newer than the step from which this run goes on belong to an
        abandoned future: they are moved to `abandoned/` first, with a warning.

        Args:
            step: Number of updates done, at least 0; the same on every process.
            metrics_dict: Numbers to keep with the step; None values are left out.
                Without a finite value of the best metric the step is never the best.
            extra: Small JSON object to keep with the step.
            force: Replace the step if it exists.
            describe: Replaces `metrics_dict` and `extra`: called once the arrays are
                copied, returns `(metrics_dict, extra)`. An exception gives the save
                up on every process. So a caller need not wait for the numbers of a
                step before the copy, and may still refuse the step for its numbers.
                The function must not save.

        Returns:
            True when a checkpoint is being written; False when the step exists
            already, or when an earlier save is in flight and `on_busy="skip"`.

        Raises:
            CheckpointWriteError: This save cannot begin, or the save before failed in
                the background.
            CheckpointTimeoutError: The save before, or another process, needs more
                than `timeout` seconds.
            CheckpointError: An array was donated to a computation, or the processes
                save different steps.
            TypeError: `metrics_dict` has values that are not numbers, JSON cannot
                hold `extra`, or a Variable holds something that cannot be saved.
            ValueError: The step is negative, or `describe` is given beside what it
                replaces.
            Exception: What `describe` raised.
        """
        started_at = time.perf_counter()
        step = index(step)
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        described = describer(metrics_dict, extra, describe)
        found: list[tuple[LiveState, dict[str, Any]]] = []

        def is_ready() -> bool:
            flight = self._flight
            if self._on_busy == "skip" and flight and not flight.has_ended:
                return False
            self._wait()
            live = LiveState(self._model, self._optimizer)
            found.append((live, live.to_stored()))
            if not found[0][1]:
                raise CheckpointError(
                    f"{self._folder}: the model holds no arrays, so nothing can be "
                    "saved; give a model with a Variable"
                )
            return True

        with contextlib.ExitStack() as held:

            def admit(ready: list[bool]) -> str | None:
                if all(ready) and self._lock_and_make_room(step, held, force=force):
                    return secrets.token_hex(4)
                return None

            attempt: str | None = _channel.agree(
                f"save step {step}", is_ready, admit, self._timeout_s
            )
            if attempt is None:
                return False
            [(live, arrays)] = found
            if self._last is not None:
                self._last.channel.close()
            flight = self._flight = self._last = Save(
                self._folder,
                step,
                attempt,
                Channel(f"save/{attempt}"),
                self._retention,
                self._timeout_s,
                held=held.pop_all(),
                started_at=started_at,
            )
        flight.start(arrays)
        try:
            metrics, kept = described()
        except BaseException as error:
            flight.give_up(error)
            raise
        flight.describe(
            Description(step, metrics, kept, versions(), saved_at=0), live.specs
        )
        self._position = step
        return True

    @_one_at_a_time
    def restore(
        self,
        step: int | None = None,
        *,
        strict: bool = False,
        on_mismatch: Literal["error", "keep"] = "error",
        rename: Mapping[str, str] | None = None,
        release: bool = False,
    ) -> int:
        """Put a checkpoint into the live model and optimizer, in their shardings.

        Without a step this restores the newest sound checkpoint, and passes over
        damaged ones with a warning. A leaf that the checkpoint lacks keeps its fresh
        value, and a leaf that only the checkpoint has is dropped: see `report`.

        The live objects change only after everything was read, so for a moment memory
        holds both states. `release=True` deletes the live arrays of 64 KB and more
        before reading, but after planning and verifying, so the peak is one state.

        Args:
            step: Step to restore; None for the newest sound one.
            strict: Refuse any difference between checkpoint and live objects.
            on_mismatch: What to do about a leaf of another shape or dtype: `"error"`,
                or `"keep"` the live value.
            rename: New by old path of parts of the model, such as
                `{"encoder": "backbone/encoder"}`; optimizer moments follow.
            release: Delete the live arrays before reading. Other references to these
                arrays, aliases made by `jax.device_put` among them, are dead
                afterwards.

        Returns:
            The restored step; 0 when the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The requested step does not exist, or the folder
                has no steps but its subfolder `checkpoints` has.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointMismatchError: The checkpoint does not fit the live objects.
            CheckpointStateLostError: Reading failed after the live arrays were
                deleted; make a new model.
            CheckpointWriteError: The save before failed in the background.
            CheckpointTimeoutError: The save before, or another process, needs more
                than `timeout` seconds.
        """
        if on_mismatch not in {"error", "keep"}:
            raise ValueError(
                f'on_mismatch must be "error" or "keep", got {on_mismatch!r}'
            )
        steps = self._list_steps("restore", clean=True)
        live = LiveState(self._model, self._optimizer)
        options = Options(strict, on_mismatch, rename)
        chosen = self._restorer.choose(
            live, steps, None if step is None else index(step), options
        )
        self._restorer.forget()
        if chosen is None:
            self._folder.check_not_of_a_run()
            return 0
        self._report = self._restorer.read(live, chosen, release=release)
        self._position, self._extra = chosen.description.step, chosen.description.extra
        if not self._report.is_exact and is_first_process():
            _logger.warning("%s: %s", self._folder, self._report)
        return self._position

    @_one_at_a_time
    def peek(self, step: int | None = None) -> tuple[int, dict[str, Any] | None] | None:
        """Return step and `extra` of the checkpoint that `restore` would use.

        The live objects stay as they are. A `restore` after this verifies only files
        that were not verified here or have changed since.

        Args:
            step: Step to peek at; None for the newest sound one.

        Returns:
            None when the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The requested step does not exist.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointWriteError: The save before failed in the background.
            CheckpointTimeoutError: The save before, or another process, needs more
                than `timeout` seconds.
        """
        steps = self._list_steps("peek", clean=False)
        live = LiveState(self._model, self._optimizer)
        chosen = self._restorer.choose(
            live, steps, None if step is None else index(step), None
        )
        return chosen and (chosen.description.step, chosen.description.extra)

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
        """The newest complete checkpoint; a save in flight does not count."""
        return max(self.steps(), default=None)

    @property
    def best_step(self) -> int | None:
        """The complete checkpoint with the best metric; None when none has a value."""
        metrics = {k: d.metrics for k, d in descriptions(self._folder).items()}
        return next(iter(self._retention.ranked(metrics)), None)

    @property
    def last_save(self) -> SaveRecord | None:
        """How long the last save took; its total is known once it is complete."""
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
        if step not in self._folder.numbered():
            raise not_found(self._folder, step)
        return dict(read_description(self._folder.step_path(step)).metrics)

    @_one_at_a_time
    def wait(self) -> None:
        """Wait until the save in flight is complete.

        Raises:
            CheckpointWriteError: It failed. Earlier checkpoints are unchanged.
            CheckpointTimeoutError: It is not done after `timeout` seconds. The write
                goes on, so waiting again is possible.
        """
        self._wait()

    @_one_at_a_time
    def close(self) -> None:
        """Wait for the save in flight. A later call of any method works again.

        Raises:
            CheckpointWriteError: The save in flight failed.
            CheckpointTimeoutError: It is not done after `timeout` seconds.
        """
        self._wait()

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
            # The caller needs to see the error that is being raised already.
            _logger.error("%s", error)  # noqa: TRY400

    def _wait(self) -> None:
        if self._flight is not None:
            try:
                self._flight.wait()
            finally:
                if self._flight.has_ended:
                    self._flight = None

    def _lock_and_make_room(
        self, step: int, held: contextlib.ExitStack, *, force: bool
    ) -> bool:
        """Lock the folder for a save, on process 0; return False if the step exists."""
        wait_for_others(self._folder)
        self._folder.create()
        if not held.enter_context(self._folder.lock()):
            raise CheckpointWriteError(
                f"{self._folder}: another process is saving a checkpoint here; "
                "give every run a folder of its own"
            )
        base = self._position
        if base is None or step < base:
            base = step
        return make_room(self._folder, step, base, force=force)

    def _list_steps(self, call: str, *, clean: bool) -> list[int]:
        """Wait for the save in flight on every process; return the steps."""

        def list_steps(_: list[None]) -> list[int]:
            if clean:
                # A live process may still write there, so only the lock holder cleans.
                with contextlib.suppress(OSError), self._folder.lock() as held:
                    if held:
                        self._folder.clean()
            return self._folder.numbered()

        return _channel.agree(call, self._wait, list_steps, self._timeout_s)
