"""Builds the `Trainer` of a `RunConfig`: model function, mesh and keywords.

The function that `model` names is called with the keywords of `[model_args]`. If the
function has a parameter `total_steps` or `phases` that `[model_args]` does not set, it
gets the steps or the phases of the whole run, as this start plans them. So if the run
is extended, a schedule of the learning rate is extended, too.
"""

from __future__ import annotations

import inspect
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import tomlkit
from roxxel_curriculum.state import checked_state, recorded_phases
from roxxel_train.config import Declaration

from roxxel.config._declaration import ConfigError, MeshConfig
from roxxel.config._model_args import (
    check_keys,
    check_model_args,
    check_model_data,
)
from roxxel.config._modules import import_beside
from roxxel.config._open import (
    open_curriculum,
    open_eval_curriculum,
    open_sampler,
)
from roxxel.config._text import changed_text, config_table

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from roxxel_curriculum import Curriculum
    from roxxel_train import Logger, Trainer

    from roxxel.config._declaration import RunConfig


NOT_LEARNED = (
    *("best_metric", "check", "checkpoint_every", "eval_every", "eval_mean"),
    *("flops_per_token", "gc_every", "hang_after_s", "keep_every", "log_every"),
    *("log_to", "max_to_keep", "profile", "save_path", "strict_sharding", "timeout"),
    "verify_every",
)
"""Settings that change nothing that is learned."""

NOT_REPEATED: Mapping[str, Any] = {
    "profile": None,
    "log_to": (),
    "branch_from": None,
    "best_metric": None,
}
"""Settings that other runs made from this run's config must not inherit, such as
sinks.
"""

_HF = "hf:"
_HF_WEIGHTS = "roxxel.models.huggingface:FolderWeights"
"""The class that loads the weights of `init_from = "hf:FOLDER"`."""


@dataclass(frozen=True)
class AsTrained:
    """What a run reads and uses, to train its steps again.

    Attributes:
        data: `Sampler.state` of its data; see `Curriculum.as_read`.
        held_out: The same for held-out sets, as for `open_eval_curriculum`.
        devices: The devices of its mesh; None for all devices.

    Example:
        >>> AsTrained({"seed": 0}, {}).data["seed"]
        0
    """

    data: Mapping[str, Any]
    held_out: Mapping[str, Mapping[str, Any]]
    devices: Sequence[Any] | None = None


def make_trainer(
    config: RunConfig, again: AsTrained | None = None, logger: Logger | None = None
) -> Trainer:
    """Return the trainer of a run, ready to `run()`.

    This function imports the model's module from `config.folder` or, failing that, from
    `sys.path`. Modules in the folder belong to the config: your own `import` of one
    makes another copy.

    Args:
        config: The config.
        again: The run whose steps are trained again; None reads the corpora as they are
            now, and uses all devices.
        logger: As for `Trainer`.

    Raises:
        ConfigError: The config is invalid, or its corpora or devices do not suffice.
            The message names the file.
        RunMismatchError: The folder holds another run, or a run that read other data.
        OSError: A corpus is missing, or the folder cannot be written.
        Exception: The model's own code raised this error.
    """
    config.needed("model", "save_path")
    curriculum = open_curriculum(config)
    if again is not None:
        curriculum = curriculum.as_read(again.data)
    check_model_data(config, curriculum)
    sets = open_eval_curriculum(config, again and again.held_out)

    from roxxel_train import Trainer

    given = _keywords(config)
    with _as_config_error(config):
        made = _Made(config, lambda: _planned_state(config, curriculum))
        for name in ("eval_fn", "train_step"):
            if given[name] is not None:
                given[name] = _load_function(config, given[name], name)
        trainer = Trainer(
            model=made.model_and_optimizer,
            curriculum=curriculum,
            loss_fn=made.loss,
            save_path=config.run_folder,
            seed=config.seed,
            eval_curriculum=sets,
            logger=logger,
            **{**given, **_mesh_keywords(config, again and again.devices)},
        )
    if trainer.folder is not None:
        trainer.declaration = declaration_of(config, trainer.folder)
    return trainer


def declaration_of(config: RunConfig, folder: Path) -> Declaration:
    """Return the file of a config, and its text for a file in the folder of its run.

    The comments of the file stay. If the start changed values by `--set`, the text has
    the changed values, and a line that lists the changes.
    """
    changes = " ".join(
        f"--set {tomlkit.item(change).as_string()}" for change in config.changes
    )
    comments = [f"{config.file.name} with {changes}"] if changes else []
    # Where the files of a run in a bucket are kept differs from machine to machine.
    beside = None if isinstance(config.run_folder, str) else folder
    return Declaration(config.file, changed_text(config, beside, comments))


def _keywords(config: RunConfig) -> dict[str, Any]:
    """Return the keywords under `[trainer]`, with paths and options of the sinks."""
    given = dict(vars(config.trainer))
    for name in ("init_from", "branch_from"):
        if given.get(name) is None:
            continue
        folder = given[name].removeprefix(_HF)
        if name == "init_from" and folder != given[name]:
            weights = _load_function(config, _HF_WEIGHTS, name)
            given[name] = weights(config.path(folder))
        else:
            given[name] = config.corpus(given[name])
    named = config.trainer.log_to
    options = named if isinstance(named, dict) else {key: {} for key in named}
    sinks = {name: dict(each) for name, each in options.items()}
    for each in sinks.values():
        if "log_dir" in each:
            each["log_dir"] = str(config.corpus(str(each["log_dir"])))
    if "wandb" in sinks:
        sinks["wandb"].setdefault("config", config_table(config))
    return {**given, "log_to": sinks}


def make_pair(
    config: RunConfig, state: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Return a new model and its optimizer, as the model's function makes them.

    Args:
        config: The config.
        state: State of a sampler at the last step of the run, from which the function
            gets `total_steps` and `phases`. If None, and if the function has such a
            parameter, this function opens the corpora and plans the run.

    Raises:
        ConfigError: The config has no `model`, or the function does not fit.
        Exception: The model's own code raised this error.
    """
    with _as_config_error(config):
        made = _Made(config, lambda: state or _planned_state(config))
        return made.model_and_optimizer()


def with_total_steps(config: RunConfig, total_steps: int) -> RunConfig:
    """Return a config whose model's function gets this number of steps.

    The config stays unchanged if the function has no parameter `total_steps`, or if
    `[model_args]` sets it.

    Raises:
        ConfigError: The config has no `model`, or the function does not exist.
    """
    with _as_config_error(config):
        function = _load_function(config, str(config.model), "model")
        accepted, _ = _parameters(function)
    if "total_steps" not in accepted.keys() - config.model_args.keys():
        return config
    return replace(config, model_args={**config.model_args, "total_steps": total_steps})


def _planned_state(
    config: RunConfig, curriculum: Curriculum | None = None
) -> Mapping[str, Any]:
    """Return the state at the last step of a run, as planned by this start."""
    sampler = open_sampler(config, curriculum)
    return sampler.state(sampler.total_steps)


class _Made:
    """Splits the model's function in two: `model_and_optimizer` and `loss`.

    The trainer compiles `model_and_optimizer`, so every device creates only its own
    part of the arrays. A direct call would create whole arrays on one device.
    """

    def __init__(
        self, config: RunConfig, last_state: Callable[[], Mapping[str, Any]]
    ) -> None:
        check_model_args(config)
        self._config = config
        self._last_state = last_state
        self._function = _load_function(config, str(config.model), "model")
        self._loss_fn: Callable[..., Any] | None = None

    def model_and_optimizer(self) -> tuple[Any, Any]:
        """Call the model's function, store the loss function, and return the rest."""
        made = self._function(**self._arguments())
        if not isinstance(made, tuple) or len(cast("tuple[Any, ...]", made)) != 3:
            raise ConfigError(
                f"{self._config.file}: {self._config.model} returned a "
                f"{type(made).__name__}; it must return (model, optimizer, loss_fn)"
            )
        model, optimizer, self._loss_fn = cast("tuple[Any, Any, Any]", made)
        return model, optimizer

    def _arguments(self) -> dict[str, Any]:
        """Return `[model_args]`, with `total_steps` and `phases` if accepted."""
        accepted, takes_all = _parameters(self._function)
        config, given = self._config, dict(self._config.model_args)
        if not takes_all:
            check_keys(config, accepted)
        if "total_steps" in accepted.keys() - given.keys():
            given["total_steps"] = self._last_state()["step"]
        if "phases" in accepted.keys() - given.keys():
            state = checked_state(self._last_state())
            given["phases"] = recorded_phases(state)
        needed = [name for name, p in accepted.items() if p.default is p.empty]
        missing = [name for name in needed if name not in given]
        if missing:
            raise ConfigError(
                f"{config.file}: [model_args] lacks {' and '.join(missing)}, which "
                f"{config.model} needs; write a value under [model_args]"
            )
        return given

    def loss(self, model: Any, batch: Any) -> Any:
        """Call the loss function that the model's function returned."""
        assert self._loss_fn is not None  # noqa: S101 - the trainer makes the model first
        return self._loss_fn(model, batch)


def _parameters(
    function: Callable[..., Any],
) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters that a keyword can set, and whether there are `**kwargs`.

    A callable written in C may have no signature; it counts as accepting any keyword.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return {}, True
    kinds = {"POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"}
    accepted = {p.name: p for p in parameters if p.kind.name in kinds}
    return accepted, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _load_function(config: RunConfig, text: str, key: str) -> Callable[..., Any]:
    """Import the `"module:function"` of a key; errors in its module propagate."""
    name, _, function = text.partition(":")
    try:
        module = import_beside(config.folder, name)
    except ModuleNotFoundError as error:
        missing = error.name
        # Is it the module or a package around it, and not one that the module imports?
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        raise ConfigError(
            f"{config.file}: {key} names the module {missing!r}, which is neither "
            f"in {config.folder} nor installed; create the module or correct the name"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(
            f"{config.file}: {module.__file__} has no function {function!r}, which "
            f"{key} names; define the function or correct the name"
        )
    return found


@contextmanager
def _as_config_error(config: RunConfig) -> Generator[None]:
    """Convert errors raised by Roxxel to `ConfigError`, but not errors of the model."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # Roxxel's own error classes propagate: their messages name the file or folder.
        *_, (raising, _) = traceback.walk_tb(error.__traceback__)
        module = str(raising.f_globals.get("__name__"))
        is_ours = module.startswith("roxxel")
        if type(error) not in {TypeError, ValueError} or not is_ours:
            raise
        raise ConfigError(f"{config.file}: {error}") from error


def _mesh_keywords(config: RunConfig, chosen: Sequence[Any] | None) -> dict[str, Any]:
    """Return the trainer's keywords for the mesh and the shardings."""
    mesh = config.mesh
    if mesh is None:
        if chosen is None:
            return {}
        mesh = MeshConfig()
    splits_model = mesh.preset in {"fsdp", "hybrid"}
    if splits_model and config.trainer.model_sharding != "annotated":
        raise ConfigError(
            f'preset = "{mesh.preset}" of [mesh] sets model_sharding; leave it out of '
            "[trainer]"
        )
    import roxxel_loader

    if mesh.axes:
        sharding = roxxel_loader.make_custom_sharding_config(
            tuple(mesh.axes.values()), tuple(mesh.axes), mesh.row_axes
        )
    elif mesh.groups is not None:
        sharding = roxxel_loader.make_hybrid_sharding_config(mesh.groups)
    elif mesh.preset == "fsdp":
        sharding = roxxel_loader.make_fsdp_sharding_config()
    else:
        sharding = roxxel_loader.make_data_parallel_sharding_config()
    devices = sharding.create_device_mesh(chosen)
    keywords = {"mesh": devices, "data_sharding": sharding.batch_sharding(devices)}
    return {**keywords, "model_sharding": "fsdp"} if splits_model else keywords
