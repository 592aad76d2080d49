"""Checks the keys of `[model_args]` against the model's function, without JAX.

The module of a model imports JAX, so this module reads the function's declaration from
its source instead. A function that cannot be found so, or that a decorator may have
changed, is checked when `roxxel train` has imported it.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.arguments import nearest

from roxxel.config._declaration import ConfigError
from roxxel.learning_rate import RECIPE, LearningRate
from roxxel.llama_config import LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Collection

    from roxxel.config._declaration import RunConfig


def check_model_args(config: RunConfig) -> None:
    """Raise ConfigError if `[model_args]` has a key that the function does not accept.

    This function imports nothing, and finds no fault with a function that it cannot
    read.
    """
    if config.model is not None and config.model_args:
        known = recipe_keys() if config.model == RECIPE else _accepted(config)
        if known is not None:
            check_keys(config, known)


def check_keys(config: RunConfig, accepted: Collection[str]) -> None:
    """Raise ConfigError unless every key of `[model_args]` is among the accepted."""
    for key in config.model_args:
        if key not in accepted:
            hint = nearest(key, accepted) or (
                f"the function accepts {' and '.join(accepted) or 'none'}"
            )
            raise ConfigError(
                f"{config.file}: [model_args] has the key {key!r}, which "
                f"{config.model} does not accept; {hint}"
            )


def recipe_keys() -> list[str]:
    """Return the keys of `[model_args]` that `roxxel.models.llama` accepts."""
    models = Path(__file__).parents[1] / "models"
    names = [each.name for kind in (LearningRate, LlamaConfig) for each in fields(kind)]
    for file, name in (
        ("_recipe.py", "llama"),
        ("_optimizer.py", "make_optimizer"),
    ):
        names += _declared(models / file, name)[0]
    return list(dict.fromkeys(names))


def _accepted(config: RunConfig) -> list[str] | None:
    """Return the keywords of the model's function; None if any, or unknown."""
    module, _, function = str(config.model).partition(":")
    path = [str(config.folder.resolve()), *sys.path]
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    names, takes_all = _declared(Path(spec.origin), function)
    return None if takes_all else names


def _declared(file: Path, name: str) -> tuple[list[str], bool]:
    """Return the keywords of a function or dataclass in a file, and if all are fine."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return [], True
    found = [each for each in body if getattr(each, "name", "") == name]
    match found:
        case [ast.ClassDef(body=body, decorator_list=[_])]:
            targets = [each.target for each in body if isinstance(each, ast.AnnAssign)]
            return [each.id for each in targets if isinstance(each, ast.Name)], False
        case [ast.FunctionDef(args=given, decorator_list=[])]:
            named = [*given.args, *given.kwonlyargs]
            return [each.arg for each in named], given.kwarg is not None
        case _:
            return [], True
