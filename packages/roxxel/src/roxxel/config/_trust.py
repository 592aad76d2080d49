"""Check that the code which a run's config names is the user's own.

A run's folder may come from anybody, and its config names functions and their
arguments. Without trust, only code of the user's own projects runs. A module in the
run's folder does not. Nor does a function of an installed package or of Python itself,
such as `subprocess.run`, which can do anything with a stranger's arguments. It stays
untrusted even if a module of the user imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_train import RunFolderError

from roxxel.config._model_code import definitions_of, functions_of
from roxxel.config._modules import module_files
from roxxel.recipe.learning_rate import RECIPE

if TYPE_CHECKING:
    from roxxel.config._declaration import RunConfig

_INSTALLED = {"site-packages", "dist-packages"}
_NOT_YOURS = "is installed, and no project of yours"


def check_trusted(config: RunConfig, run: Path) -> None:
    """Check that a run's config names only code of the user's own projects.

    This function imports nothing.

    Args:
        config: The config, whose functions will be imported.
        run: The run's folder.

    Raises:
        RunFolderError: A function lies in the run's folder or in an installed package;
            the message names its file.
    """
    # A named function may be imported from another module, so all of them must be
    # trusted: the named one, and the one that defines the function.
    definitions = [
        (text, module, function)
        for text in functions_of(config)
        for module, function in definitions_of(config.folder, text, RECIPE)
    ]
    for text, module, function in definitions:
        files = module_files(config.folder, module)
        # Our own recipe is trusted, unless a module of this name hides it.
        is_recipe = f"{module}:{function}" == RECIPE
        if is_recipe and files[-1:] == [_recipe_file()]:
            continue
        doubts = {str(file): _doubt(file, run) for file in files if file is not None}
        # A module without files is part of Python, or missing: then its import fails.
        if not files and not _is_absent(module):
            doubts = {"Python itself": _NOT_YOURS}
        for where, why in doubts.items():
            if why is not None:
                raise RunFolderError(
                    f"{run}: the config of this run calls {text} from {where}, which "
                    f"{why}; a stranger's code can do whatever you can, so look at "
                    "this code and at [model_args], and give --trust (trust=True in "
                    "Python) if you trust both"
                )


def _doubt(file: Path, run: Path) -> str | None:
    """Return why a file may hold a stranger's code; None if it does not."""
    own = Path(os.path.abspath(file))  # noqa: PTH100 - keeps links
    # A link lies in one folder and leads to another.
    places = [each.parent.resolve() / each.name for each in (own, *own.parents)]
    if any(each.is_relative_to(run.resolve()) for each in [*places, file.resolve()]):
        return "lies in the run's folder"
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    if _INSTALLED & {*own.parts, *file.resolve().parts} or any(
        file.resolve().is_relative_to(Path(folder).resolve())
        for folder in (*installed, Path(__file__).parents[1])
    ):
        return _NOT_YOURS
    return None


def _recipe_file() -> Path:
    return Path(__file__).parents[1] / "models" / "__init__.py"


def _is_absent(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is None
    except ValueError:  # `__main__`
        return False
