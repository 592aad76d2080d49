"""Every setting of a run, declared once: name, type, default, meaning and check.

`TrainConfig` defines the signature and the documentation of `Trainer`, the comparison
of settings between processes, the settings in the row of a start, and, in the package
`roxxel`, the table `[trainer]` of a config file. This module does not import JAX, so a
config file can be checked without it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

from roxxel_curriculum import Curriculum, Field
from roxxel_store.arguments import Amount, Count, Rule, check, nearest
from roxxel_store.lines import plain_row

from roxxel_train._step.spike_rule import SkipSpikes
from roxxel_train._step.spike_rule import SpikeRule as SpikeRule  # noqa: PLC0414 - for reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from flax import nnx
    from jax.sharding import Mesh, NamedSharding
    from roxxel_ckpt import Checkpointer

    from roxxel_train._log.logger import Logger
    from roxxel_train._step.step import LossFunction, ModelState, TrainStep

_Arguments = ParamSpec("_Arguments")
_Self = TypeVar("_Self")

_OF_PHASES = {"steps", "epochs", "tokens", "batch_size", "seq_len", "weights"}
_ALIKE = {"alike": True}  # must be equal in all processes
_OBJECT = {"is_object": True}  # nothing that a file may hold
_UNRECORDED = {"is_unrecorded": True}  # no start records it

_Every = Annotated[
    Count | Literal["continuous"],
    Rule(must_be='a number of steps of 1 or more, or "continuous"'),
]
_Kept = Annotated[
    Count | Annotated[str, Rule(pattern=r"\s*(?=.*[1-9])\d+(\.\d+)?\s*[smhd]\s*\Z")],
    Rule(must_be='a number of steps of 1 or more, or a duration such as "6h"'),
]
_Steps = Annotated[tuple[int, int], Rule(must_be="two rising steps [start, stop]")]

_EXAMPLES = {
    "curriculum": ", as in Curriculum(corpus, [Phase(steps, batch_size, seq_len)])",
    "checkpointer": ", or its folder as save_path=",
}

_DETERMINISTIC = (
    "--xla_gpu_deterministic_ops",
    "--xla_gpu_exclude_nondeterministic_ops",
)

CONTINUOUS = "continuous"
"""The value of `checkpoint_every` that saves whenever no save is in progress."""

LogTo = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Names of sinks, or names with the options of each sink."""

SINKS: Mapping[str, tuple[str, str, Callable[[Path], dict[str, Any]]]] = {
    "tensorboard": (
        "roxxel_train.tensorboard",
        "TensorBoard",
        lambda run: {"log_dir": run / "tensorboard"},
    ),
    "wandb": ("roxxel_train.wandb", "WandB", lambda run: {"log_dir": run}),
}
"""For each sink: its module, its class, and its options for a given run folder.

W&B makes a subfolder `wandb` by itself. A sink is imported only if it is named.
"""


class Declaration(NamedTuple):
    """The config file that declares a run; each start keeps it in its row of the log.

    Attributes:
        file: Path of the file.
        text: Its text, for a file in the folder of the run.

    Example:
        >>> from pathlib import Path
        >>> Declaration(Path("run.toml"), "seed = 1").text
        'seed = 1'
    """

    file: Path
    text: str


@runtime_checkable
class Weights(Protocol):
    """Weights from outside, such as a folder of a model of another library.

    The run records the object's text, and a later start compares it.

    Example:
        >>> class Zeros:
        ...     def __str__(self) -> str:
        ...         return "zeros"
        ...     def load(self, model: nnx.Module) -> None:
        ...         zeros = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
        ...         nnx.update(model, zeros)
        >>> isinstance(Zeros(), Weights)
        True
    """

    def load(self, model: nnx.Module) -> None:
        """Put the weights into a model on the mesh, and keep its shardings."""
        ...


@dataclass(frozen=True, eq=True, kw_only=True)
class Settings:
    """The arguments of a `Trainer` that a config file can hold; see `TrainConfig`.

    Example:
        >>> Settings(log_every=0)
        Traceback (most recent call last):
        ValueError: log_every must be an integer of 1 or more, got 0
    """

    eval_every: Count | None = field(default=None, metadata=_ALIKE)
    checkpoint_every: _Every = field(default=1000, metadata=_ALIKE)
    log_every: Count = field(default=10, metadata=_ALIKE)
    max_to_keep: Count | None = field(default=3, metadata=_ALIKE)
    timeout: Amount = 1000
    grad_accum_steps: Count = field(default=1, metadata=_ALIKE)
    strict_sharding: bool = False
    fields: Sequence[Field] = field(default=("tokens",), metadata=_ALIKE)
    model_sharding: Literal["annotated", "fsdp"] | Sequence[str] = "annotated"
    eval_mean: Sequence[str] | None = field(default=None, metadata=_ALIKE)
    best_metric: str | None = field(default=None, metadata=_ALIKE)
    init_from: str | os.PathLike[str] | Weights | None = None
    branch_from: str | os.PathLike[str] | None = None
    profile: _Steps | None = None
    hang_after_s: Amount | None = 1800.0
    flops_per_token: Amount | None = None
    check: Literal["headers", "blocks"] = "headers"
    keep_every: _Kept | None = field(default=None, metadata=_ALIKE)
    log_to: LogTo = field(default=(), metadata=_UNRECORDED)
    skip_spikes: SkipSpikes | None = field(default=None, metadata=_ALIKE)
    gc_every: Count | None = field(default=100, metadata=_ALIKE)
    verify_every: Count | None = field(default=None, metadata=_ALIKE)

    def __post_init__(self) -> None:
        check(self)
        _check_profile(self.profile)
        _check_log_to(self.log_to)
        if self.skip_spikes is not None:
            SpikeRule.of(self.skip_spikes)
        if self.init_from is not None and self.branch_from is not None:
            raise ValueError(
                "init_from and branch_from are both given; give init_from for the "
                "weights alone, or branch_from for the whole state"
            )

    @property
    def spike_rule(self) -> SpikeRule | None:
        """The rule of `skip_spikes`; None applies every update."""
        return None if self.skip_spikes is None else SpikeRule.of(self.skip_spikes)

    @property
    def saved_every(self) -> int | None:
        """Steps between scheduled checkpoints; None if no step is scheduled.

        With continuous saves, only the steps that `keep_every` keeps are scheduled.
        """
        every = self.checkpoint_every
        if isinstance(every, int):
            return every
        return self.keep_every if isinstance(self.keep_every, int) else None


@dataclass(frozen=True, eq=False, repr=False)
class TrainConfig(Settings):
    """The arguments of a `Trainer`.

    This class checks each argument alone. `Trainer` checks the arguments together.

    Args:
        model: A Flax NNX module, or a function that returns `(model, optimizer)`. The
            trainer moves a module to the mesh; after `run()` the module has the newest
            values. If `model` is a function, the trainer compiles it, and every device
            creates only its own part of the arrays, so a model that is split may exceed
            the memory of a device.
        optimizer: The `nnx.Optimizer` of `model`; omitted if `model` is a function. If
            its class has a method `averaged(model)` that returns parameters, held-out
            losses are those of these parameters. If it has `rate_at(step)`, the log
            says when a start changes the learning rate of the next update, and when the
            run continues after its decay.
        curriculum: The data, the blend and the batch shape of every step.
        loss_fn: A function `(model, batch)`. `batch` has shape `(batch_size, seq_len)`
            and dtype int32. The function returns a scalar, a tuple or list whose first
            value is the loss, or a nested dict. The dict has a scalar named `"loss"`,
            or exactly one scalar. The trainer logs further scalars by their path
            (`aux/grad/x`), and ignores arrays and None. If a mask excludes tokens,
            return the number of unmasked tokens as the scalar `"loss_weight"`: means
            over parts of a batch and over held-out batches use this weight, so a loss
            that uses the field `"loss_mask"` must return it there. If the function also
            returns the mean loss of each row as `"row_loss"`, of shape `(batch_size,)`,
            the trainer logs the loss of each source; `"row_weight"`, of the same shape,
            has the number of unmasked tokens of each row.
        save_path: Folder of the run: `checkpoints/`, `metrics.jsonl`, `system.log` and
            `run.json`. May be a URL of a bucket, such as `s3://bucket/run` (also
            `gs://` and `az://`; the extra `bucket` installs the client). Then the files
            are also in a local folder, which the log names. If None, the run writes no
            files.
        eval_fn: A function of a `ModelState` that every process calls. It returns text,
            a number, a dict of texts and numbers, or None. Process 0 logs the result.
        eval_every: Updates between evaluations. None evaluates only after the last
            update.
        checkpoint_every: Updates between checkpoints; the last update is always saved.
            `"continuous"` begins a save as soon as the last one is complete, so a crash
            loses as little as the storage allows. Each save costs a copy of the state
            to the host (`save_s` in the log).
        log_every: Updates between metrics rows. The first update of the run and the
            last update of each phase always have a row.
        seed: Seed of the data order.
        mesh: Devices of the run; by default all devices along one axis, `"data"`.
        data_sharding: Sharding of a batch over the mesh. By default the first axis of
            the mesh and the axis `"context"`, if there is one, split the rows of a
            batch. If only `"context"` does not divide the rows, its devices get the
            same rows, for a model that splits columns.
        checkpointer: Replaces the trainer's own checkpointer under `save_path`.
        logger: Replaces the trainer's own logger under `save_path`.
        log_to: Names of sinks that also get the metrics rows: `"tensorboard"`
            and `"wandb"` (Weights & Biases), or a dict from names to options.
            Their files are in `save_path`; the extras `tensorboard` and `wandb` install
            the libraries. If a sink fails, the log has a warning and the run continues.
        train_step: A function `(model, optimizer, batch)` that replaces the gradient
            step on `loss_fn`. The function updates model and optimizer in place, and
            returns a loss in any form that is allowed for `loss_fn`. The trainer
            compiles the function, so `nnx.jit` is not needed.
        max_to_keep: Newest checkpoints to keep, besides the best one; None keeps all.
        keep_every: Which checkpoints are never deleted. With an integer, every
            checkpoint whose step is a multiple of it. With a duration such as `"6h"`
            (units s, m, h, d), a checkpoint saved at least this long after the last
            permanent one.
        timeout: Longest wait in seconds for a checkpoint, and for the other processes
            at the start and the end of the run.
        grad_accum_steps: Number of parts into which a batch is cut to save memory. If a
            part does not divide over the devices, some devices are idle, and the log
            says how many. With `strict_sharding`, idle devices are an error.
        strict_sharding: Whether a batch that does not divide over the mesh is an error.
            By default the trainer replicates such a batch.
        fields: Fields of a batch. With more fields than `"tokens"`, such as
            `"segment_ids"` and `"positions"`, a batch is a dict of arrays by field.
        model_sharding: Sharding of the arrays of the model and the optimizer.
            `"annotated"` uses the annotation of each Variable, or the sharding that its
            array already has on the mesh, and replicates all other arrays. `"fsdp"`
            does the same, but splits large arrays that have no annotation instead of
            replicating them. It splits over the mesh axes that split the rows of a
            batch, except the axis `"replica"`. A list of axis names splits the same
            arrays over the listed axes.
        eval_curriculum: Held-out data. Every evaluation computes the mean of `loss_fn`
            over all held-out batches, with the model in evaluation mode, and logs
            `eval_loss`. A dict from names to curricula declares several sets: the
            losses are `eval_loss/NAME`, and `eval_loss` is the mean of these losses,
            or of those in `eval_mean`.
            A run pins each set under its name: when it resumes, a corpus that has grown
            is read at its first version, and other data is an error. Give a changed set
            a new name.
        eval_mean: Names of the held-out sets whose mean is `eval_loss`. None means all
            sets; an empty list logs each set alone, and no `eval_loss`.
        best_metric: Name of the metric that ranks checkpoints: a value of `loss_fn`, a
            value of `eval_fn`, `"eval_loss"`, or the loss of a held-out set such as
            `"eval_loss/web"`. The checkpoint with the lowest value is kept besides the
            newest ones. By default a resumed run uses the metric that its checkpoints
            record. A new run uses `"eval_loss"`, or without held-out data the mean
            training loss since the last checkpoint.
        init_from: A checkpoint of another run: `"runs/a"` is the newest checkpoint of
            the run in this folder, and `"runs/a@100"` is step 100. The folder of the
            checkpoints, the folder of one step, or a URL are allowed too. A new run
            starts at step 0 with the weights of this checkpoint. It records which
            checkpoint it was: if the run is lost before its own first checkpoint, it
            begins with the same weights again. A run that has a checkpoint ignores
            `init_from`. An object with the methods of `Weights` gives the model weights
            from elsewhere.
        branch_from: A checkpoint of another run, named as for `init_from`. A new run
            continues from the whole state: model, optimizer, random streams, step and
            data order. The curriculum may differ in steps after the checkpoint. The new
            run saves this state at once, and from then on does not need the other run.
            If `save_path` already holds a run, it must be a branch of this checkpoint.
            The run then continues from its own checkpoints.
        profile: Steps `(start, stop)` whose JAX trace is written to `profile/`.
        hang_after_s: Time limit of a step in seconds; compiling and evaluating do not
            count. If a step exceeds the limit, the trainer logs the stacks of all
            threads, and a run of several processes ends. None sets no limit.
        flops_per_token: Floating-point operations per token, forward and backward, from
            which `model_flops_per_s` and `mfu` are computed. The default, 6 per
            parameter, leaves out the attention scores.
        check: `"blocks"` verifies the checksum of every block of tokens that is read,
            held-out data included, so the run never trains on a damaged token. The
            error about a damaged block says how to continue without its tokens, by
            `without=` of `Curriculum`. `"headers"` verifies only the metadata of a
            shard: head, foot and indexes.
        skip_spikes: Leaves out updates that are spikes: model and optimizer stay as
            they were, and the log has the rows of the batch. A dict with any of
            `deviations` (default 8: a spike is more than 8 median absolute deviations
            above the median), `window` (64: the number of applied updates to compare
            with) and `what` (`("loss", "grad_norm")`: the values to compare). The first
            `window` updates of each phase are always applied, and so is the update
            after 8 spikes in a row. A NaN or infinite loss still ends the run. `{}`
            takes all defaults; None applies every update.
        gc_every: Updates between collections of Python's garbage, which all processes
            make after the same updates (`gc_s` in the log). Until `run()` returns,
            Python does not collect by itself in this program, because a process that
            collects at its own time keeps the others waiting. If your `eval_fn` leaves
            large arrays in reference cycles, they stay in memory until the next
            collection: then give a smaller number, or None, which leaves collecting to
            Python.
        verify_every: Every so many updates, one is made twice, on the device, from a
            copy of the state and the same batch. If a bit differs, a device or its
            memory is faulty: the run ends with `SilentCorruptionError`, which names
            step, array and devices, and saves nothing after this update. A check costs
            one update and the wait for its result. So 100 costs about 1 % of the time,
            and memory for a second state. A check finds only faults in the repeated
            update or right before it. So a device that is wrong now and then is found
            sooner or later. On GPUs, operations that add in any order would look like
            faults, so set `XLA_FLAGS=--xla_gpu_deterministic_ops=true`. None makes no
            update twice.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has a wrong type.

    Example:
        >>> TrainConfig(None, log_every=0)
        Traceback (most recent call last):
        ValueError: log_every must be an integer of 1 or more, got 0
    """

    model: nnx.Module | Callable[[], tuple[nnx.Module, nnx.Optimizer[Any]]] = field(
        metadata=_OBJECT
    )
    optimizer: nnx.Optimizer[Any] | None = field(default=None, metadata=_OBJECT)
    curriculum: Curriculum | None = field(
        default=None,
        metadata=_OBJECT | {"instance_of": "roxxel_curriculum.Curriculum"},
    )
    loss_fn: LossFunction | None = field(
        default=None, metadata=_OBJECT | {"called_with": "model, batch"}
    )
    save_path: str | os.PathLike[str] | None = None
    eval_fn: Callable[[ModelState], Any] | None = field(
        default=None, metadata=_OBJECT | {"called_with": "state"}
    )
    _: KW_ONLY
    seed: int = 0
    mesh: Mesh | None = field(default=None, metadata=_OBJECT)
    data_sharding: NamedSharding | None = field(default=None, metadata=_OBJECT)
    checkpointer: Checkpointer | None = field(
        default=None, metadata=_OBJECT | {"instance_of": "roxxel_ckpt.Checkpointer"}
    )
    logger: Logger | None = field(
        default=None, metadata=_OBJECT | {"instance_of": "roxxel_train.Logger"}
    )
    train_step: TrainStep | None = field(
        default=None, metadata=_OBJECT | {"called_with": "model, optimizer, batch"}
    )
    eval_curriculum: Curriculum | Mapping[str, Curriculum] | None = field(
        default=None, metadata=_OBJECT
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and "None" in str(each.type):
                continue
            if "called_with" in each.metadata:
                _check_function(each.name, value, each.metadata["called_with"])
            elif "instance_of" in each.metadata:
                _check_object(each.name, value, each.metadata["instance_of"])
        _check_held_out(self.eval_curriculum)
        sets = self.held_out
        for name in self.eval_mean or ():
            if name not in sets:
                known = ", ".join(map(repr, filter(None, sets))) or "none"
                raise ValueError(
                    f"eval_mean names {name!r}, but the named held-out sets are "
                    f"{known}; name some of these, or omit eval_mean"
                )
        if self.eval_every is not None and not (self.eval_fn or sets):
            raise ValueError(
                f"eval_every={self.eval_every} evaluates nothing; give "
                "eval_curriculum or eval_fn, or omit eval_every"
            )
        if self.log_to and (self.logger is not None or self.save_path is None):
            missing = (
                "with a logger" if self.logger is not None else "without save_path"
            )
            raise ValueError(
                f"log_to is given {missing}; give save_path and log_to, or a Logger "
                "with these sinks"
            )

    @property
    def held_out(self) -> dict[str, Curriculum]:
        """The held-out sets by name; a set without a name has the empty name."""
        given = self.eval_curriculum
        if given is None:
            return {}
        return {"": given} if isinstance(given, Curriculum) else dict(given)

    @property
    def mean_sets(self) -> list[str]:
        """The held-out sets whose mean is `eval_loss`, in order of their names."""
        return sorted(self.held_out if self.eval_mean is None else self.eval_mean)

    def check_platform(self, platform: str) -> None:
        """Check the settings that depend on a device.

        Raises:
            ValueError: `verify_every` is given, but `XLA_FLAGS` let the GPU add in any
                order.
        """
        flags = os.environ.get("XLA_FLAGS", "")
        if self.verify_every and platform == "gpu" and not adds_in_one_order(flags):
            raise ValueError(
                f"verify_every={self.verify_every} compares bits, but on this GPU some "
                f"operations add in any order (XLA_FLAGS={flags!r}); set "
                "XLA_FLAGS=--xla_gpu_deterministic_ops=true, or omit verify_every"
            )

    def make_sinks(self, folder: Path) -> list[Callable[[dict[str, Any]], object]]:
        """Return the sinks of `log_to`, with their files in the run's folder.

        Raises:
            ModuleNotFoundError: A library is missing; the message names the extra.
            TypeError: A sink does not have one of the given options.
        """
        given = self.log_to
        options = given if isinstance(given, dict) else {name: {} for name in given}
        sinks: list[Callable[[dict[str, Any]], object]] = []
        for name, of_sink in options.items():
            module, class_name, options_of = SINKS[name]
            make = getattr(import_module(module), class_name)
            try:
                sinks.append(make(**{**options_of(folder), **of_sink}))
            except TypeError as error:
                raise TypeError(f"log_to, sink {name!r}: {error}") from error
        return sinks

    def traced_steps(self, total_steps: int) -> range:
        """Return the steps whose JAX trace is written; empty without `profile`.

        Raises:
            ValueError: A run of `total_steps` does not reach them, or has no folder.
        """
        if self.profile is None:
            return range(0)
        start, stop = self.profile
        if start >= total_steps:
            raise ValueError(
                f"profile={(start, stop)} starts after the last of {total_steps} "
                f"steps; give a start below {total_steps}"
            )
        if self.save_path is None:
            raise ValueError(
                f"profile={(start, stop)} needs a folder for the trace; give save_path"
            )
        return range(start, stop)

    def pacing(self) -> dict[str, object]:
        """Return the settings that must be equal in all processes, as JSON values.

        Processes with different settings would wait for each other forever.
        """
        alike = {each.name for each in fields(self) if "alike" in each.metadata}
        return {name: x for name, x in self.settings().items() if name in alike}

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values, for the log; objects are left out."""
        recorded = {
            each.name: _as_recorded(getattr(self, each.name))
            for each in fields(self)
            if not {"is_object", "is_unrecorded"} & each.metadata.keys()
        }
        return plain_row(recorded, for_json=True)


def adds_in_one_order(flags: str) -> bool:
    """Return whether these `XLA_FLAGS` make a GPU add in a fixed order.

    Example:
        >>> adds_in_one_order("--xla_gpu_deterministic_ops=true")
        True
    """
    parts = (each.partition("=") for each in flags.split())
    values = {name: value.lower() for name, _, value in parts}
    return any(values.get(name) in {"", "true", "1"} for name in _DETERMINISTIC)


def configured_by(
    config: Callable[_Arguments, object],
) -> Callable[
    [Callable[Concatenate[_Self, ...], None]],
    Callable[Concatenate[_Self, _Arguments], None],
]:
    """Return a decorator that gives a constructor the signature of a config class.

    The constructor gets all arguments by name. An unknown argument is a TypeError that
    names the most similar one.
    """
    signature = inspect.signature(config)

    def decorate(
        init: Callable[Concatenate[_Self, ...], None],
    ) -> Callable[Concatenate[_Self, _Arguments], None]:
        @functools.wraps(config.__init__)
        def build(
            self: _Self, *args: _Arguments.args, **kwargs: _Arguments.kwargs
        ) -> None:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                name = type(self).__name__
                hint = _closest(kwargs, signature.parameters)
                remedy = hint or f"help({name}) lists the arguments"
                raise TypeError(f"{name}: {error}; {remedy}") from None
            init(self, **bound.arguments)

        build.__doc__ = config.__doc__
        return build

    return decorate


def _as_recorded(setting: Any) -> Any:
    """Return a setting; a path and `Weights` become text."""
    if isinstance(setting, Weights):
        return str(setting)
    if isinstance(setting, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", setting))
    return setting


def _closest(given: Iterable[str], known: Iterable[str]) -> str:
    """Return where an unknown argument belongs, or the known argument most like it."""
    names = list(known)
    for name in given:
        if name in names:
            continue
        if name in _OF_PHASES:
            return "give it to a Phase of the curriculum"
        if hint := nearest(name, names):
            return hint
    return ""


def _check_log_to(log_to: LogTo) -> None:
    for name in log_to:
        if name not in SINKS:
            hint = nearest(name, SINKS) or "name one of these"
            raise ValueError(
                f"log_to names {name!r}, but the sinks are "
                f"{', '.join(map(repr, SINKS))}; {hint}"
            )


def _check_held_out(value: Any) -> None:
    """Check that held-out data is a curriculum, or named curricula."""
    if value is None or isinstance(value, Curriculum):
        return
    if not isinstance(value, Mapping):
        raise TypeError(
            f"eval_curriculum is a {type(value).__name__}; give a Curriculum, or a "
            "dict from names to curricula"
        )
    for name, one in cast("Mapping[Any, Any]", value).items():
        if not (isinstance(name, str) and name and isinstance(one, Curriculum)):
            raise TypeError(
                f"eval_curriculum[{name!r}] is a {type(one).__name__}; give a dict "
                "from names to curricula"
            )


def _check_function(name: str, value: Any, arguments: str) -> None:
    """Check that the trainer can call a function of the user with its arguments."""
    from roxxel_train._step.given import check_call

    if not callable(value):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which cannot be called; "
            "give a function"
        )
    check_call(name, value, arguments)


def _check_object(name: str, value: Any, wanted: str) -> None:
    """Check that a value is an instance of the class `"module.Name"`."""
    module, _, class_name = wanted.rpartition(".")
    if not isinstance(value, getattr(import_module(module), class_name)):
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}; give a {wanted}{_EXAMPLES.get(name, '')}")


def _check_profile(profile: tuple[int, int] | None) -> None:
    """Check that the steps ascend; `traced_steps` compares them with the run."""
    if profile is None:
        return
    start, stop = profile
    if not 0 <= start < stop:
        raise ValueError(
            f"profile={(start, stop)} holds no steps; give 0 <= start < stop"
        )
