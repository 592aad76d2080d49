"""From a `RunConfig` to a `Trainer`: the model's function, the mesh, the keywords."""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import contextmanager
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, cast

from roxxel.config._declaration import ConfigError
from roxxel.config._open import open_curriculum, open_eval_curriculum

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from roxxel_train import Trainer

    from roxxel.config._declaration import MeshConfig, RunConfig


def make_trainer(config: RunConfig) -> Trainer:
    """Return the trainer of a run, ready to `run()`.

    The module of the model is looked for in the folder that the config's paths are
    relative to, then as every import is; `sys.path` is left as it was.

    Raises:
        ConfigError: Something in the config cannot be met; the message names the file.
        RunMismatchError: The folder holds another run, or one that saw other data.
        OSError: A corpus is not there, or the folder cannot be written.
        Exception: What the model's own code raises.
    """
    for name in ("model", "save_path"):
        if getattr(config, name) is None:
            example = '"module:function"' if name == "model" else '"runs/first"'
            raise ConfigError(
                f"{config.file}: has no {name}, which training needs; "
                f"write {name} = {example}"
            )
    curriculum = open_curriculum(config)
    held_out = open_eval_curriculum(config)

    from roxxel_train import Trainer

    given = _trainer_keywords(config)
    with _importable(config.folder), _as_config_error(config):
        made = _Made(config)
        return Trainer(
            model=made.model_and_optimizer,
            curriculum=curriculum,
            loss_fn=made.loss,
            save_path=config.run_folder,
            seed=config.seed,
            eval_curriculum=held_out,
            **given,
            **_mesh_keywords(config.mesh),
        )


class _Made:
    """What the function of a config makes, once the trainer asks for it.

    The trainer calls it where every device makes only its own part of the arrays, so it
    is not called before.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._function = load_function(config)
        self._loss_fn: Callable[..., Any] | None = None

    def model_and_optimizer(self) -> tuple[Any, Any]:
        """Call the function and return the first two of what it makes.

        Raises:
            ConfigError: It makes something else than three things.
        """
        made = self._function(**self._config.model_args)
        if not isinstance(made, tuple) or len(cast("tuple[Any, ...]", made)) != 3:
            raise ConfigError(
                f"{self._config.file}: {self._config.model} returned a "
                f"{type(made).__name__}; it must return (model, optimizer, loss_fn)"
            )
        model, optimizer, self._loss_fn = cast("tuple[Any, Any, Any]", made)
        return model, optimizer

    def loss(self, model: Any, batch: Any) -> Any:
        """Call the loss function that was made with the model."""
        assert self._loss_fn is not None  # noqa: S101 - a model is made first
        return self._loss_fn(model, batch)


def load_function(config: RunConfig) -> Callable[..., Any]:
    """Return the function that `model` names.

    Raises:
        ConfigError: There is no such module, or no such function in it.
        Exception: What the module raises when it is imported.
    """
    name, _, function = str(config.model).partition(":")
    _forget_namesake(name.partition(".")[0], config.folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{config.file}: model names the module {error.name!r}, which is neither "
            f"in {config.folder} nor installed; put it there or mend the name"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(
            f"{config.file}: {module.__file__} has no function {function!r}, which "
            "model names; write it there or mend the name"
        )
    return found


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """Look for modules in a folder first, inside the block."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def _forget_namesake(name: str, folder: Path) -> None:
    """Drop a loaded module if the folder holds another one of that name.

    Two configs of one program may both call their module `model`.
    """
    spec = PathFinder.find_spec(name, [str(folder.resolve())])
    loaded = sys.modules.get(name)
    if spec is None or spec.origin is None or loaded is None:
        return
    if getattr(loaded, "__file__", None) != spec.origin:
        for other in [n for n in sys.modules if f"{n}.".startswith(f"{name}.")]:
            del sys.modules[other]


@contextmanager
def _as_config_error(config: RunConfig) -> Generator[None]:
    """Name the config in what Roxxel refuses; the model's own errors pass."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # The subclasses that Roxxel raises name their place themselves.
        if type(error) not in {TypeError, ValueError} or not _is_raised_by_us(error):
            raise
        raise ConfigError(f"{config.file}: {error}") from error


def _is_raised_by_us(error: Exception) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__"))
    return module.startswith("roxxel") and not module.startswith("roxxel.quickstart")


def _trainer_keywords(config: RunConfig) -> dict[str, Any]:
    given = config.trainer.given()
    if "init_from" in given:
        given["init_from"] = config.path(given["init_from"])
    if given.get("hang_after_s") == 0:
        given["hang_after_s"] = None  # which TOML cannot say
    return given


def _mesh_keywords(mesh: MeshConfig | None) -> dict[str, Any]:
    """Return the devices' mesh and how batches and model lie on it."""
    if mesh is None:
        return {}
    from roxxel_loader import (
        make_custom_sharding_config,
        make_data_parallel_sharding_config,
        make_fsdp_sharding_config,
    )

    is_fsdp = mesh.preset == "fsdp"
    if mesh.axes:
        names = tuple(mesh.axes)
        sharding = make_custom_sharding_config(
            tuple(mesh.axes.values()), names, mesh.batch_axes or names[0]
        )
    elif is_fsdp:
        sharding = make_fsdp_sharding_config()
    else:
        sharding = make_data_parallel_sharding_config()
    devices = sharding.create_device_mesh()
    keywords: dict[str, Any] = {
        "mesh": devices,
        "data_sharding": sharding.batch_sharding(devices),
    }
    return {**keywords, "model_sharding": "fsdp"} if is_fsdp else keywords
