"""Checkpointer: save in the background, verify, restore, and delete old checkpoints."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, cast

from roxxel_ckpt._arrays.leaves import LiveObjects, StateTree
from roxxel_ckpt._place.description import (
    Description,
    Retention,
    checked_json,
    checked_metrics,
    checked_step,
    description_of,
    descriptions,
    finished,
)
from roxxel_ckpt._restore.compare import STATE_ROOT, Options
from roxxel_ckpt._restore.restorer import Restorer
from roxxel_ckpt._save.save import Save, SaveRecord, begin_save, check_shared
from roxxel_ckpt.coordination import Channel, process_count, process_index
from roxxel_ckpt.devices import copied, has_room, reserve_on_host
from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointStateLostError,
)
from roxxel_ckpt.locations import open_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from roxxel_store.swap import Manifest

    from roxxel_ckpt._place.description import BestRule
    from roxxel_ckpt._place.folder import Step
    from roxxel_ckpt._restore.compare import RestoreReport
    from roxxel_ckpt._restore.restorer import Candidate
    from roxxel_ckpt.contents import Files

_logger = logging.getLogger("roxxel_ckpt")
# All checkpointers of a process share one channel, so that processes may construct
# different numbers of checkpointers.
_channel = Channel("calls")


class Checkpointer:
    """Saves the state of a program in the background and restores it bit for bit.

    There are two forms. With a model, `save` reads the live arrays of Flax NNX objects
    and `restore` replaces them in place. Without a model, `save(state=tree)` writes
    any pytree and `load(like=tree)` returns one: use this form for Linen, Equinox and
    Optax, and for a loop that makes a new state in every step.

    On a disk, the directory `<checkpoint_path>/<k>/` holds step `k`. In a bucket, the
    objects below `<k>.<attempt>/` hold step `k`, which exists once `manifest.json`
    lists it. If several programs save here, the one that begins last wins: the saves of
    the others fail and change nothing. A program begins with its first save, if nobody
    has begun since it restored a step. A checkpoint holds everything that the NNX
    objects hold: parameters, optimizer state, RNG keys and counts, batch statistics and
    every other Variable. A checkpoint appears only when it is complete, with digests of
    its files. Each process writes and digests its own arrays, and verifies every file
    before it uses the file. A checkpoint is sound if its files match their digests.

    With several processes, every process must make the same calls in the same order,
    and `checkpoint_path` must be a folder that all processes share, or a URL. The
    processes agree through the coordination service of `jax.distributed`, which runs no
    collective on the devices.

    Args:
        checkpoint_path: Folder of the checkpoints, as a path or as a URL such as
            `s3://bucket/run/checkpoints` (also `gs://` and `az://`; the extra `bucket`
            installs the client). The trainer uses the subfolder `checkpoints` of its
            run. The constructor writes no file. The first `save` creates the folder
            and removes half-written files of killed processes.
        model: Flax NNX object. `save` reads its live arrays. `restore` replaces them,
            in their shardings. None for the form with `state=` and `like=`.
        optimizer: Flax NNX object. With None, `save` writes and `restore` reads the
            model alone.
        max_to_keep: Number of newest checkpoints to keep; None keeps all.
        timeout: Longest wait for a background write or another process, in seconds. A
            request to a bucket is repeated for about a third of this time.
        best_metric: Key of `metrics_dict` that ranks checkpoints. None uses the
            `best_metric` of the newest checkpoint that records one. If no checkpoint
            records one, the key is `"eval_loss"` (the held-out loss) if any checkpoint
            has this metric, else `"loss_since_save"` (the mean training loss since the
            previous checkpoint), else `"loss"`.
        best_mode: `"min"` if lower is better, `"max"` if higher is better. None uses
            the recorded mode of this metric, or `"min"`.
        keep_best: Number of best checkpoints to keep in addition to the newest.
        keep_every: Which checkpoints are permanent, so never deleted. An integer `n`:
            every step that is a multiple of `n`. A duration such as `"6h"` (units s, m,
            h, d): every checkpoint saved at least this long after the permanent
            checkpoint of the step before. A checkpoint records that it is permanent, so
            a clock that was wrong, or a later program, never deletes it.
        local: Local directory in which files are staged, before an upload or after a
            download. The files of the newest checkpoint stay in this directory, so that
            a restart on this machine downloads less. None uses a temporary directory
            (of `tempfile`), which is removed at the end. The directory needs room for
            the arrays of this process.
        read_only: Whether `save` is an error. All other methods leave the folder
            unchanged anyway.

    Raises:
        ValueError: An argument is out of range, the URL cannot be used, or `local` is
            given with a path.
        NotADirectoryError: `checkpoint_path` is a file.
        TypeError: `model` or `optimizer` is not an NNX object with live Variables.
        ModuleNotFoundError: `checkpoint_path` is a URL, and the extra `bucket` is not
            installed.

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
        model: Any = None,
        optimizer: Any = None,
        max_to_keep: int | None = 3,
        timeout: float = 1000,
        *,
        best_metric: str | None = None,
        best_mode: Literal["min", "max"] | None = None,
        keep_best: int = 1,
        keep_every: int | str | None = None,
        local: str | os.PathLike[str] | None = None,
        read_only: bool = False,
    ) -> None:
        if not isinstance(cast("object", timeout), Real):
            raise TypeError(f"timeout must be a number of seconds, got {timeout!r:.50}")
        longest = threading.TIMEOUT_MAX  # the longest wait of Python's locks
        if not 0 < timeout <= longest:
            raise ValueError(
                f"timeout must be above 0 and at most {longest:.0f} seconds, "
                f"got {timeout}"
            )
        self._retention = Retention(
            max_to_keep, keep_best, keep_every, best_metric, best_mode
        )
        if local is not None:
            # Several processes of one host may pass the same `local`.
            local = Path(local) / f"process-{process_index()}"
        self._folder = open_folder(checkpoint_path, local, timeout)
        self._model, self._optimizer = model, optimizer
        self._timeout_s, self._is_read_only = timeout, read_only
        self._objects = None if model is None else LiveObjects(model, optimizer)
        if model is None and optimizer is not None:
            raise TypeError(
                "an optimizer was given without a model; give both, or neither and "
                "save(step, metrics, state=tree)"
            )
        self._restorer = Restorer(self._folder, _channel, timeout)
        self._lock = threading.RLock()
        self._is_shared = False
        self._last: Save | None = None  # The save that started last, ended or not.
        self._awaited: Save | None = None  # The last save that `wait` saw complete.
        # The step last saved or restored; None before the first save or restore.
        self._position: int | None = None
        # The newer steps that the last restore could not use.
        self._damaged: tuple[Step, ...] = ()
        # Whose turn to save it was before the last restore, until the next save.
        self._seen: Manifest | None = None
        self._is_lost = False
        self._extra: dict[str, Any] | None = None
        self._report: RestoreReport | None = None

    def save(
        self,
        step: SupportsIndex,
        metrics_dict: Mapping[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        force: bool = False,
        files: Callable[[], Files] = dict,
        *,
        state: Any = None,
        snapshot: bool | None = None,
    ) -> bool:
        """Save the state as a step; return once its arrays may be donated.

        On a GPU or TPU with room for a second copy of the state, `save` returns as soon
        as the devices hold this copy. The copy goes to the host and to the files in the
        background. Without room, and on a CPU, `save` waits for the copy to the host.

        The run continues from the step that was last saved or restored. Newer
        checkpoints belong to another history of the run, so if there are any, `save`
        saves nothing and raises an error. To go back to an earlier step, save into
        another folder, or delete the newer ones. A newer checkpoint that `restore`
        skipped because it is damaged is renamed to `<k>.damaged` (in a bucket: marked
        so), and the run goes on.

        Args:
            step: Number of updates done, at least 0; the same on every process. May
                be a numpy integer or a JAX array of shape `()`.
            metrics_dict: Numbers to save with the step; values of None are dropped.
                A step without a finite value of the best metric is never the best.
            extra: Small JSON object to save with the step.
            force: Replace the step if it exists.
            files: For a folder in a bucket: process 0 calls this function on the thread
                of the save, before the step exists. It returns the pieces of the run's
                files that go with the step (`roxxel_ckpt.contents.Files`), which the
                commit lists with the step. If the function raises an error, the save
                fails and the step never exists.
            state: The pytree to save, if the checkpointer was made without a model. Its
                leaves are arrays, typed PRNG keys and numbers of Python.
            snapshot: Whether to copy the arrays on their devices first, if they have
                room. None: if the devices of every process have room for it, besides
                the peak of its programs so far.

        Returns:
            True if a checkpoint is being written. False if the step exists already.

        Raises:
            CheckpointWriteError: There are newer checkpoints, this save cannot begin,
                or the previous save failed in the background.
            CheckpointTimeoutError: The previous save, or another process, needs more
                than `timeout` seconds.
            CheckpointStateLostError: `restore(release=True)` failed to read the state.
            CheckpointError: An array was donated to a computation, the processes save
                different steps, or the checkpointer is read-only.
            TypeError: The step is not an integer, `metrics_dict` has values that are
                not numbers, JSON cannot hold `extra`, or a leaf is neither an array nor
                a number. Or `state` is missing, or is given although there is a model.
            ValueError: The step is negative.
        """
        if self._is_read_only:
            raise CheckpointError(
                f"{self._folder}: was opened with read_only=True, so nothing is saved "
                "here; make another Checkpointer to save"
            )
        if self._is_lost:
            raise CheckpointStateLostError(
                f"{self._folder}: the state in memory was lost when a restore failed, "
                "so there is nothing to save; restore again"
            )
        self._check_form("save", state=state)
        started_at = time.perf_counter()
        from roxxel_ckpt._arrays.orbax import versions  # only who saves loads Orbax

        number = checked_step(step)
        metrics, kept = checked_metrics(metrics_dict), checked_json(extra)
        with self._lock, contextlib.ExitStack() as held:
            if process_count() > 1:  # one process becomes the writer as it saves
                self._check_shared(lambda: self._seen)
            found: list[tuple[StateTree, dict[str, Any]]] = []

            def prepare() -> bool:
                self._collect(state, found)
                [(_, arrays)] = found
                return bool(has_room(arrays)) if snapshot is None else snapshot

            position = number if self._position is None else self._position
            begun = begin_save(
                self._folder,
                _channel,
                number,
                position,
                self._damaged,
                prepare,
                held,
                force=force,
                seen=self._seen,
                timeout_s=self._timeout_s,
            )
            self._seen = None
            if begun is None:
                return False
            attempt, on_devices = begun
            [(live, arrays)] = found
            if self._last is not None:
                self._last.channel.close()
            self._last = Save(
                self._folder,
                Description(number, metrics, kept, versions(), saved_at=0),
                live.specs,
                attempt,
                self._retention,
                self._timeout_s,
                self._damaged,
                files,
            )
            found.clear()  # a copy is freed once it is on the host
            self._last.start(arrays, started_at, held.pop_all(), on_devices=on_devices)
            self._position = number
            return True

    def state_digest(self) -> str:
        """Return a digest of the live model and optimizer, as 16 hexadecimal digits.

        It covers the name, the place and the bits of every value, and is equal for
        every sharding and every number of processes. Save it in `extra` as
        `state_digest`: then `roxxel-ckpt verify` finds a checkpoint with other arrays.
        Every process makes this call.

        Raises:
            CheckpointError: An array was donated to a computation.
            TypeError: The checkpointer was made without a model.

        Example:
            >>> from flax import nnx
            >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            >>> with Checkpointer("digests", model) as checkpointer:
            ...     digest = checkpointer.state_digest()
            ...     checkpointer.save(1, extra={"state_digest": digest})
            True
        """
        from roxxel_ckpt._arrays.state_digest import state_digest

        live = self._tree()
        arrays = live.to_stored()
        return state_digest((name, live.specs[name], x) for name, x in arrays.items())

    @property
    def has_room(self) -> bool | None:
        """Whether the devices have room for a snapshot of the model and optimizer.

        Room is what the programs so far have left free at their peak. None if a device
        does not report its memory, as a CPU: then `save` makes a snapshot only if
        asked.

        Raises:
            TypeError: The checkpointer was made without a model.
        """
        return has_room(self._tree().to_stored())

    def warm_up(self) -> None:
        """Do the first save's one-time work now, if saves make snapshots.

        That is compiling the digest and the copy of the state, and allocating the host
        memory through which copies leave a GPU. The trainer makes this call while its
        first step is compiled. Every process makes it.

        Raises:
            CheckpointWriteError: JAX cannot allocate enough host memory.
            TypeError: The checkpointer was made without a model.
        """
        if self.has_room:
            self.state_digest()
            arrays = self._tree().to_stored()
            copied(arrays)
            reserve_on_host(arrays)

    def check_shared(self, *, begins: bool = True) -> None:
        """Check that all processes see the same folder of checkpoints.

        If each process wrote to its own disk, no disk would hold a complete step. The
        first `save` of several processes makes this check unless the program did. On a
        disk, this method creates the folder. It takes over from an earlier program,
        which can no longer save. It also loads Orbax, so a program that cannot save
        learns this before it trains.

        Args:
            begins: Whether to take over from any other program. False if this program
                has begun here by other means, as the trainer does to fetch the run's
                files: then a program that has begun since is an error.

        Raises:
            CheckpointWriteError: A process does not see a file that process 0 wrote,
                process 0 cannot write, or a later program has begun; raised on every
                process.
            CheckpointTimeoutError: Another process needs more than `timeout` seconds.
        """
        with self._lock:
            self._check_shared(self._folder.turn if begins else lambda: None)

    def _check_shared(self, seen: Callable[[], Manifest | None]) -> None:
        if not self._is_shared:
            importlib.import_module("roxxel_ckpt._arrays.orbax")
            check_shared(self._folder, _channel, seen, self._timeout_s)
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
        """Restore a checkpoint into the live model and optimizer, in their shardings.

        Without `step`, `restore` uses the newest sound checkpoint, and logs a warning
        for each damaged checkpoint that it skips. A leaf is an array or number of the
        state. A leaf that the checkpoint lacks keeps its live value. A leaf that only
        the checkpoint has is dropped. `report` lists these leaves.

        The live objects change only after all arrays are read, so peak memory is twice
        the state. With `release=True`, peak memory is once the state: after verifying
        and before reading, `restore` deletes live arrays of 64 KiB and more.

        Args:
            step: Step to restore; None for the newest sound checkpoint.
            strict: Raise an error if checkpoint and live objects differ in any leaf.
            on_mismatch: What to do if the shape or dtype of a leaf differs: `"error"`
                raises, `"keep"` keeps the live value.
            rename: Maps model paths in the checkpoint to live model paths, such as
                `{"encoder": "backbone/encoder"}`; also renames optimizer moments.
            release: Delete the live arrays before reading. Afterwards, all other
                references to these arrays are invalid, including aliases made by
                `jax.device_put`.

        Returns:
            The restored step; 0 if the folder holds no checkpoint.

        Raises:
            CheckpointNotFoundError: The requested step does not exist. Or the folder
                holds no step, but is a step itself, or a run whose subfolder
                `checkpoints` has steps.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointUnreadableError: The newest checkpoint, or the requested one, may
                be sound but cannot be read here; no older one is used instead.
            CheckpointMismatchError: The checkpoint does not fit the live objects.
            CheckpointStateLostError: With `release=True`, reading failed after the live
                arrays were deleted. The checkpoint is unchanged. `save` raises this
                error too, until a `restore` succeeds; these objects may be used for it.
            CheckpointWriteError: The previous save failed in the background, or the
                local disk cannot store the files downloaded from a bucket.
            CheckpointTimeoutError: The previous save, or another process, needs more
                than `timeout` seconds.
        """
        if self._objects is None:
            raise TypeError(
                f"{self._folder}: was opened without a model, so restore() has nothing "
                "to put values into; call load(like=tree)"
            )
        options = Options(strict, on_mismatch, rename)
        with self._lock:
            seen = self._turn()
            chosen = self._restorer.choose(
                "restore", step, self._objects.tree, options, self.wait
            )
            if chosen is None:
                return 0
            try:
                roots = self._restorer.read(chosen, release=release)
            except CheckpointStateLostError:
                self._is_lost = True
                raise
            self._objects.update(roots)
            self._is_lost = False
            return self._follow(chosen, seen)

    def load(
        self, step: SupportsIndex | None = None, *, like: Any, strict: bool = True
    ) -> Any:
        """Load a checkpoint as a pytree with the structure and shardings of `like`.

        This is the counterpart of `save(state=)`. Without `step`, `load` uses the
        newest sound checkpoint, as `restore` does. Leaves are matched by their paths;
        afterwards, `report` has the step, and the paths if they differ.

        Args:
            step: Step to load; None for the newest sound checkpoint.
            like: Pytree of arrays, numbers or `jax.ShapeDtypeStruct`s, such as a fresh
                state or the result of `jax.eval_shape`. An array is loaded with the
                type, dtype and sharding of its leaf here. If `like` has an array for a
                saved Python float, the float is rounded. `like` does not change.
            strict: Raise an error if checkpoint and `like` differ in any leaf. With
                False, a leaf that the checkpoint lacks keeps its value of `like`, and a
                leaf that only the checkpoint has is dropped.

        Returns:
            A new pytree. With `strict=False`, the result shares leaves that kept their
            values with `like`.

        Raises:
            CheckpointNotFoundError: The folder holds no checkpoint, or not this step;
                `peek` returns None for an empty folder.
            CheckpointMismatchError: The checkpoint does not fit `like`; the message
                names every difference by path.
            CheckpointDamagedError: The step is damaged, or no checkpoint is sound.
            CheckpointWriteError, CheckpointTimeoutError: As for `restore`.
            TypeError: The checkpointer was made with a model.

        Example:
            >>> import jax
            >>> state = {"weights": jax.numpy.ones(3), "step": 10}
            >>> with Checkpointer("trees") as checkpointer:
            ...     checkpointer.save(10, {"loss": 0.5}, state=state)
            True
            >>> shapes = jax.eval_shape(lambda: state)
            >>> checkpointer.load(like=shapes)["weights"]
            Array([1., 1., 1.], dtype=float32)
        """
        self._check_form("load", state=like)
        options = Options(strict, is_load=True)
        with self._lock:
            seen = self._turn()
            chosen = self._restorer.choose(
                "load", step, lambda: StateTree({STATE_ROOT: like}), options, self.wait
            )
            if chosen is None:
                raise CheckpointNotFoundError(
                    f"{self._folder}: holds no checkpoint; call peek() before load()"
                )
            tree = self._restorer.read(chosen)[STATE_ROOT]
            self._follow(chosen, seen)
            return tree

    def peek(
        self, step: SupportsIndex | None = None, *, must_fit: bool = False
    ) -> tuple[int, dict[str, Any] | None] | None:
        """Return step and `extra` of the checkpoint that `restore` or `load` would use.

        The live objects stay unchanged. The next `restore` skips the verification of
        files that `peek` verified, unless the files have changed. `restore` also logs
        the damaged checkpoints; `peek` logs them only if no checkpoint is sound.

        Args:
            step: The step; None for the newest sound checkpoint.
            must_fit: Raise an error if the checkpoint does not fit the live objects, as
                `restore` does, or if it holds floats (weights, moments, averages) that
                they lack.

        Returns:
            None if the folder holds no checkpoint.

        Raises:
            CheckpointMismatchError: As `must_fit` says.
            CheckpointNotFoundError, CheckpointDamagedError: As for `restore`.
            CheckpointUnreadableError: As for `restore`.
            CheckpointWriteError, CheckpointTimeoutError: As for `restore`.
        """
        with self._lock:
            chosen = self._restorer.choose("peek", step, self._live, None, self.wait)
            if must_fit and chosen is not None:
                chosen.check_continues()
            return chosen and (chosen.description.step, chosen.description.extra)

    @property
    def extra(self) -> dict[str, Any] | None:
        """The `extra` of the step that was restored or loaded last, or None."""
        return self._extra

    @property
    def report(self) -> RestoreReport | None:
        """What the last `restore` or `load` did with every leaf; None before any."""
        return self._report

    @property
    def model(self) -> Any:
        """The object whose arrays are saved and restored; None without one."""
        return self._model

    @property
    def optimizer(self) -> Any:
        """The optimizer whose arrays are saved and restored; None without one."""
        return self._optimizer

    @property
    def checkpoint_path(self) -> str:
        """The folder of the checkpoints, as an absolute path or a URL."""
        return str(self._folder)

    @property
    def latest_step(self) -> int | None:
        """The newest complete step; a save in flight does not count."""
        return max(self.steps(), default=None)

    @property
    def best_step(self) -> int | None:
        """The step with the best metric; None if no checkpoint has a finite value."""
        return next(iter(self._retention.ranked(descriptions(self._folder))), None)

    @property
    def best_rule(self) -> BestRule:
        """The rule that ranks the checkpoints; every save records this rule."""
        return self._retention.best_rule(descriptions(self._folder))

    @property
    def last_save(self) -> SaveRecord | None:
        """How long the last save took; None before any save."""
        return self._last and self._last.record

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight, so that the next `save` would wait for it."""
        return self._last is not None and not self._last.has_ended

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, oldest first."""
        return list(finished(self._folder))

    def metrics(self, step: SupportsIndex) -> dict[str, float]:
        """Return the metrics saved with a step.

        Raises:
            CheckpointNotFoundError: The step does not exist.
            CheckpointDamagedError: The step's description cannot be read.
        """
        return dict(description_of(self._folder, step).metrics)

    def digest(self, step: SupportsIndex) -> str:
        """Return a digest of all files of a step, as 16 hexadecimal digits.

        Raises:
            CheckpointNotFoundError, CheckpointDamagedError: As in `metrics`.
        """
        return description_of(self._folder, step).digest

    def wait(self) -> None:
        """Wait until the save in flight is complete.

        Raises:
            CheckpointWriteError: The save failed. Earlier checkpoints are unchanged.
            CheckpointTimeoutError: The save is not done after `timeout` seconds. The
                save continues, so `wait` may be called again.
        """
        with self._lock:
            if self._last is not None and self._last is not self._awaited:
                self._last.wait()
                self._awaited = self._last

    def close(self) -> None:
        """Call `wait`, which may raise an error. All methods still work afterwards."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exc: object, _traceback: object) -> None:
        try:
            self.close()
        except CheckpointError as error:
            if exc is None:
                raise
            # Raising this error would hide the error that ended the block.
            _logger.error("%s", error)  # noqa: TRY400

    def _check_form(self, call: str, *, state: Any) -> None:
        """Raise a TypeError if a call belongs to the other form of a checkpointer."""
        if self._objects is not None and call == "load":
            raise TypeError(
                f"{self._folder}: was opened with a model, into which restore() puts "
                "the values; call restore(), or load with Checkpointer(path)"
            )
        if self._objects is not None and state is not None:
            raise TypeError(
                f"{self._folder}: was opened with a model, which save() reads itself; "
                "leave out state=, or save it with Checkpointer(path)"
            )
        if self._objects is None and state is None:
            name = "like" if call == "load" else "state"
            raise TypeError(
                f"{self._folder}: was opened without a model, so {call}() needs a "
                f"pytree; give {name}=tree, or make Checkpointer(path, model)"
            )

    def _live(self) -> StateTree | None:
        """Return the leaves of the live objects; None without objects."""
        return None if self._objects is None else self._objects.tree()

    def _tree(self) -> StateTree:
        """Return the leaves of the live objects; raise a TypeError without objects."""
        live = self._live()
        if live is None:
            raise TypeError(
                f"{self._folder}: was opened without a model, so there is no live "
                "state; make Checkpointer(path, model)"
            )
        return live

    def _turn(self) -> Manifest | None:
        """Return whose turn to save it is, for a program that restores and then saves.

        Steps on a disk can be read without a manifest, so only `save` raises an error
        for a damaged or unreadable one.
        """
        if self._is_read_only or process_index() != 0:
            return None
        try:
            return self._folder.turn()
        except CheckpointBucketError:
            raise
        except (CheckpointDamagedError, OSError):
            return None

    def _follow(self, chosen: Candidate, seen: Manifest | None) -> int:
        """Continue from a step that was read; return the step."""
        self._seen = seen
        self._report, self._extra = chosen.report, chosen.description.extra
        self._position = chosen.description.step
        self._damaged = chosen.skipped
        return self._position

    def _collect(
        self, state: Any, found: list[tuple[StateTree, dict[str, Any]]]
    ) -> None:
        """Wait for the save in flight, and append the state to save to `found`."""
        self.wait()
        live = self._live() or StateTree({STATE_ROOT: state})
        found.append((live, live.to_stored()))
        if not found[0][1]:
            raise CheckpointError(
                f"{self._folder}: the state holds no arrays, so nothing can be saved; "
                "give a model with a Variable, or a state with an array"
            )
