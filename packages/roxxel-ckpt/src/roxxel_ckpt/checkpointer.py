"""Checkpointer: save in the background, verify, restore, and delete old checkpoints."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from roxxel_ckpt._compare import Options
from roxxel_ckpt._description import (
    Description,
    checked_json,
    checked_metrics,
    checked_step,
    descriptions,
    read_description,
)
from roxxel_ckpt._folder import Folder
from roxxel_ckpt._leaves import LiveState
from roxxel_ckpt._orbax import versions
from roxxel_ckpt._restore import Restorer, not_found
from roxxel_ckpt._retention import Retention
from roxxel_ckpt._save import Save, SaveRecord, check_shared, prepare_folder
from roxxel_ckpt.coordination import Channel, process_count, process_index
from roxxel_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from roxxel_ckpt._compare import RestoreReport
    from roxxel_ckpt._description import BestRule
    from roxxel_ckpt._restore import Candidate

_logger = logging.getLogger("roxxel_ckpt")
# All checkpointers of a process share one channel, so the processes may construct
# different numbers of them.
_channel = Channel("calls")


class Checkpointer:
    """Saves a model and its optimizer in the background, restores them bit for bit.

    The directory `<checkpoint_path>/<k>/` holds step `k`. A checkpoint holds everything
    that the NNX objects hold: parameters, optimizer state, RNG keys and counts, batch
    statistics and every other Variable. A checkpoint appears only when it is complete,
    with digests of its files. Each process writes and digests its own arrays. Before a
    process uses a file, it verifies the file. A checkpoint whose files match their
    digests is sound.

    On several processes every process makes the same calls in the same order, and
    `checkpoint_path` is a folder that all of them see. The processes agree over the
    coordination service of `jax.distributed`, so agreeing runs no collective on the
    devices.

    Args:
        checkpoint_path: Folder of the checkpoints. For a run of the trainer, this is
            the subfolder `checkpoints` of the run. The constructor writes no file. The
            first `save` makes the folder and removes half-written files of killed
            processes.
        model: Flax NNX object. `save` reads its live arrays. `restore` replaces them,
            in their shardings.
        optimizer: Flax NNX object. With None, `save` writes and `restore` reads the
            model alone.
        max_to_keep: Number of newest checkpoints to keep; None keeps all.
        timeout: Longest wait for a background write or another process, in seconds.
        best_metric: Key of `metrics_dict` that compares checkpoints. None uses the
            metric that the newest checkpoint records. If the recorded metric is None,
            or nothing is recorded, the metric is `"eval_loss"` (the held-out loss) if
            any checkpoint has it, else `"loss_mean"` (the mean training loss since the
            previous checkpoint), else `"loss"`.
        best_mode: `"min"` if lower is better, `"max"` if higher is better. None uses
            the recorded mode of this metric, or `"min"`.
        keep_best: Number of best checkpoints to keep besides the newest.
        keep_every: Which checkpoints to keep forever. A number keeps the checkpoints at
            multiples of this number of steps. A duration such as `"6h"` (units s, m, h,
            d) keeps a checkpoint if at least that long passed since the last one kept.
        on_busy: What `save` does while an earlier save is in flight: `"wait"` for the
            earlier save, or `"skip"` this save and return False.

    Raises:
        ValueError: An argument is out of its range, or `checkpoint_path` is a URL.
        NotADirectoryError: `checkpoint_path` is a file.

    Example:
        >>> from flax import nnx
        >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        >>> with Checkpointer("checkpoints", model) as checkpointer:
        ...     checkpointer.save(10, {"loss": 0.5})
        True
        >>> checkpointer.restore()
        10
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
        best_mode: Literal["min", "max"] | None = None,
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
        self._is_shared = False
        self._flight: Save | None = None
        # The last save that began, in flight or not.
        self._last: Save | None = None
        # The step last saved or restored; None before the first save or restore.
        self._position: int | None = None
        self._extra: dict[str, Any] | None = None
        self._report: RestoreReport | None = None

    def save(
        self,
        step: SupportsIndex,
        metrics_dict: Mapping[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        force: bool = False,
    ) -> bool:
        """Save the live state as a step; return once its arrays may be donated.

        If the run continues from a step that is not the newest, the newer checkpoints
        are from a run that this one replaces. `save` first moves them to `abandoned/`,
        with a warning.

        Args:
            step: Number of updates done, at least 0; the same on every process. May
                be an integer of numpy or a JAX array of shape `()`.
            metrics_dict: Numbers to save with the step; None values are left out.
                Without a finite value of the best metric, the step is never the best.
            extra: Small JSON object to save with the step.
            force: Replace the step if it exists.

        Returns:
            True if a checkpoint is being written. False if the step exists already, or
            if an earlier save is in flight and `on_busy="skip"`.

        Raises:
            CheckpointWriteError: This save cannot begin, or the previous save failed in
                the background.
            CheckpointTimeoutError: The previous save, or another process, needs more
                than `timeout` seconds.
            CheckpointError: An array was donated to a computation, or the processes
                save different steps.
            TypeError: The step is not an integer, `metrics_dict` has values that are
                not numbers, JSON cannot hold `extra`, or a Variable holds something
                that cannot be saved.
            ValueError: The step is negative.
        """
        started_at = time.perf_counter()
        number = checked_step(step)
        metrics, kept = checked_metrics(metrics_dict), checked_json(extra)
        with self._lock, contextlib.ExitStack() as held:
            self.check_shared()
            found: list[tuple[LiveState, dict[str, Any]]] = []

            def admit(ready: list[bool]) -> str | None:
                if all(ready) and prepare_folder(
                    self._folder, number, self._position, held, force=force
                ):
                    return secrets.token_hex(4)
                return None

            attempt: str | None = _channel.agree(
                f"save step {number}",
                lambda: self._is_ready(found),
                admit,
                self._timeout_s,
            )
            if attempt is None:
                return False
            [(live, arrays)] = found
            if self._last is not None:
                self._last.channel.close()
            self._flight = self._last = Save(
                self._folder,
                Description(number, metrics, kept, versions(), saved_at=0),
                live.specs,
                attempt,
                self._retention,
                self._timeout_s,
                held.pop_all(),
            )
            self._flight.start(arrays, started_at)
            self._position = number
            return True

    def check_shared(self) -> None:
        """Check that all processes see the same folder of checkpoints.

        If each process had its own disk, no disk would hold a complete step. The first
        `save` makes this check, unless a call did so before. On several processes, the
        check makes the folder. In a program of one process, it does nothing.

        Raises:
            CheckpointWriteError: A process does not see what process 0 writes, or
                process 0 cannot write; raised on every process.
            CheckpointTimeoutError: Another process needs more than `timeout` seconds.
        """
        with self._lock, contextlib.ExitStack() as held:
            if process_count() > 1 and not self._is_shared:
                check_shared(self._folder, _channel, held, self._timeout_s)
            self._is_shared = True

    def restore(
        self,
        step: SupportsIndex | None = None,
        *,
        strict: bool = False,
        on_mismatch: Literal["error", "keep"] = "error",
        rename: Mapping[str, str] | None = None,
        release: bool = False,
    ) -> int:
        """Put a checkpoint into the live model and optimizer, in their shardings.

        Without `step`, this restores the newest sound checkpoint, and skips damaged
        ones with a warning. A leaf that the checkpoint lacks keeps its live value. A
        leaf that only the checkpoint has is dropped. Both are listed in `report`.

        The live objects change only after all arrays were read, so memory holds both
        states for a moment. With `release=True`, the peak is one state: after verifying
        and before reading, `restore` deletes live arrays of 64 KiB and more.

        Args:
            step: Step to restore; None for the newest sound one.
            strict: Raise an error if checkpoint and live objects differ in any leaf.
            on_mismatch: What to do about a leaf of another shape or dtype: `"error"`,
                or `"keep"` the live value.
            rename: Maps old paths of parts of the model to new paths, such as
                `{"encoder": "backbone/encoder"}`. Their optimizer moments are renamed
                too.
            release: Delete the live arrays before reading. Afterwards, all other
                references to these arrays are invalid, including aliases made by
                `jax.device_put`.

        Returns:
            The restored step; 0 if the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The requested step does not exist, or the folder
                has no steps but its subfolder `checkpoints` has.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointMismatchError: The checkpoint does not fit the live objects.
            CheckpointStateLostError: Reading failed after the live arrays were
                deleted; make a new model.
            CheckpointWriteError: The previous save failed in the background.
            CheckpointTimeoutError: The previous save, or another process, needs more
                than `timeout` seconds.
        """
        if on_mismatch not in {"error", "keep"}:
            raise ValueError(
                f'on_mismatch must be "error" or "keep", got {on_mismatch!r}'
            )
        options = Options(strict, on_mismatch, rename)
        with self._lock:
            live, chosen = self._choose("restore", step, options)
            self._restorer.forget()
            if chosen is None:
                self._folder.check_not_of_a_run()
                return 0
            report = self._report = self._restorer.read(live, chosen, release=release)
            self._extra = chosen.description.extra
            self._position = chosen.description.step
            if not chosen.description.has_digests and process_index() == 0:
                _logger.warning(
                    "%s: step %d was written by an Orbax manager and carries no "
                    "digests, so a changed value in its files would not be found",
                    self._folder,
                    self._position,
                )
            if not report.is_exact and process_index() == 0:
                _logger.warning("%s: %s", self._folder, report)
            return self._position

    def peek(
        self, step: SupportsIndex | None = None
    ) -> tuple[int, dict[str, Any] | None] | None:
        """Return step and `extra` of the checkpoint that `restore` would use.

        The live objects stay unchanged. The next `restore` does not verify again the
        files that this call verified, unless they have changed.

        Args:
            step: The step; None for the newest sound one.

        Returns:
            None if the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The requested step does not exist.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointWriteError: The previous save failed in the background.
            CheckpointTimeoutError: The previous save, or another process, needs more
                than `timeout` seconds.
        """
        with self._lock:
            _, chosen = self._choose("peek", step, None)
            return chosen and (chosen.description.step, chosen.description.extra)

    @property
    def extra(self) -> dict[str, Any] | None:
        """The `extra` of the step that was restored last; None if it has no `extra`."""
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
    def optimizer(self) -> Any:
        """The optimizer whose arrays are saved and restored; None without one."""
        return self._optimizer

    @property
    def checkpoint_path(self) -> str:
        """The folder of the checkpoints, as an absolute path."""
        return str(self._folder)

    @property
    def mngr(self) -> Any:
        """Raise an AttributeError that names the methods to call instead."""
        raise AttributeError(
            "Checkpointer has no Orbax manager; call its own wait() in place of "
            "mngr.wait_until_finished(), close(), steps() in place of all_steps(), and "
            "read latest_step and best_step"
        )

    @property
    def latest_step(self) -> int | None:
        """The newest complete step; a save in flight does not count."""
        return max(self.steps(), default=None)

    @property
    def best_step(self) -> int | None:
        """The step with the best metric; None if no checkpoint has a finite value."""
        ranked = self._retention.ranked(descriptions(self._folder))
        return next(iter(ranked), None)

    @property
    def best_rule(self) -> BestRule:
        """How the checkpoints are compared; every save records this rule."""
        return self._retention.best_rule(descriptions(self._folder))

    @property
    def last_save(self) -> SaveRecord | None:
        """How long the last save took; None before the first save."""
        return self._last and self._last.record

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, oldest first."""
        return self._folder.steps()

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """Return the metrics saved with a step.

        Raises:
            CheckpointNotFoundError: The step does not exist.
            CheckpointDamagedError: The step's description cannot be read.
        """
        number = checked_step(step)
        if number not in self._folder.numbered():
            raise not_found(self._folder, number)
        return dict(read_description(self._folder.step_path(number)).metrics)

    def wait(self) -> None:
        """Wait until the save in flight is complete.

        Raises:
            CheckpointWriteError: The save failed. Earlier checkpoints are unchanged.
            CheckpointTimeoutError: The save is not done after `timeout` seconds. It
                continues, so waiting again is possible.
        """
        with self._lock:
            self._wait()

    def close(self) -> None:
        """Wait for the save in flight. All methods may still be called afterwards.

        Raises:
            CheckpointWriteError: The save in flight failed.
            CheckpointTimeoutError: The save is not done after `timeout` seconds.
        """
        self.wait()

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
            # Raising this error would hide the error that ended the block.
            _logger.error("%s", error)  # noqa: TRY400

    def _wait(self) -> None:
        if self._flight is not None:
            try:
                self._flight.wait()
            finally:
                if self._flight.has_ended:
                    self._flight = None

    def _is_ready(self, found: list[tuple[LiveState, dict[str, Any]]]) -> bool:
        """Put the live arrays into `found`; return False if this save is skipped."""
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

    def _choose(
        self, call: str, step: SupportsIndex | None, options: Options | None
    ) -> tuple[LiveState, Candidate | None]:
        """Wait for the save in flight on every process; choose a sound checkpoint."""

        def list_steps(_: list[None]) -> list[int]:
            if options is not None:
                # Another process may be saving, so only the holder of the lock cleans.
                with contextlib.suppress(OSError), self._folder.lock() as held:
                    if held:
                        self._folder.clean()
            return self._folder.numbered()

        steps = _channel.agree(call, self._wait, list_steps, self._timeout_s)
        live = LiveState(self._model, self._optimizer)
        wanted = None if step is None else checked_step(step)
        return live, self._restorer.choose(live, steps, wanted, options)
