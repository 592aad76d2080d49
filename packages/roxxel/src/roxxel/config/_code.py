"""The code behind the functions that a config names, read without importing it.

A module that a user writes imports JAX, and may print or load files, so `roxxel plan`
and a sweep read its source instead.

A run's folder may come from anybody, and its config names functions and their
arguments. Without trust, only code of the user's own projects runs. A module in the
run's folder does not. Nor does a function of an installed package or of Python itself,
such as `subprocess.run`, which can do anything with a stranger's arguments. It stays
untrusted even if a module of the user imports it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_train import RunFolderError

from roxxel.config._modules import module_file, module_files
from roxxel.recipe.learning_rate import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel.config._declaration import RunConfig

_INSTALLED = {"site-packages", "dist-packages"}
_NOT_YOURS = "is installed, and no project of yours"
_OURS = Path(__file__).parents[1]


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
        for text in _functions_of(config)
        for module, function in _definitions_of(config.folder, text)
    ]
    for text, module, function in definitions:
        files = module_files(config.folder, module)
        # Our own recipe is trusted, unless a module of this name hides it.
        is_recipe = f"{module}:{function}" == RECIPE
        if is_recipe and files[-1:] == [_OURS / "models" / "__init__.py"]:
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


def code_digest(config: RunConfig) -> str:
    """Return a digest of the model's code, which comments and layout do not change.

    The code is that of the modules that define the model's function, `eval_fn` and
    `train_step`, and of what they import from the config's folder or from their own
    package. So another machine or another version of JAX has the same digest. Names
    that are imported at run time (`importlib`), and files that the code reads, are not
    part of it.
    """
    digest = hashlib.sha256()
    for name, code in sorted(_modules(config.folder, _functions_of(config))):
        digest.update(f"{name} {len(code)}\n".encode())
        digest.update(code)
    return digest.hexdigest()


def keywords_of(folder: Path, text: str) -> list[str] | None:
    """Return the keywords that a `"module:function"` accepts.

    None if it accepts any, or if they are unknown: a decorator may change them, and a
    class may inherit them.
    """
    module, _, function = text.partition(":")
    file = module_file(folder, module)
    tree = _parsed(file) if file is not None and file.suffix == ".py" else None
    body = [] if tree is None else tree.body
    match [each for each in body if getattr(each, "name", "") == function]:
        case [ast.FunctionDef(args=given, decorator_list=[])] if given.kwarg is None:
            return [each.arg for each in (*given.args, *given.kwonlyargs)]
        case _:
            return None


def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _functions_of(config: RunConfig) -> list[str]:
    named = [config.model, config.trainer.eval_fn, config.trainer.train_step]
    return [*filter(None, named)]


def _definitions_of(folder: Path, text: str) -> list[tuple[str, str]]:
    """Return the modules that may define a `"module:function"`, and its names there.

    A module may import the function from a second one, which may import it from a
    third.
    """
    module, _, function = text.partition(":")
    found = [(module, function)]
    for name, wanted in found:
        file = module_file(folder, name)
        tree = _parsed(file) if file else None
        if file is None or tree is None or f"{name}:{wanted}" == RECIPE:
            continue
        named = {bound for node in tree.body for bound in _bound(node)}
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    is_all = each.name == "*" and wanted not in named
                    if is_all or wanted == (each.asname or each.name):
                        taken = wanted if is_all else each.name
                        origin = (_base(node, package), taken)
                        found += [] if origin in found else [origin]
    return found


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
        for folder in (*installed, _OURS)
    ):
        return _NOT_YOURS
    return None


def _is_absent(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is None
    except ValueError:  # `__main__`
        return False


def _modules(folder: Path, functions: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the code of each module that the functions need."""
    waiting = [text.partition(":")[0] for text in functions]
    packages = {name.partition(".")[0] for name in waiting}
    own, seen = folder.resolve(), set[str]()
    while waiting:
        name = waiting.pop()
        file = None if name in seen else module_file(folder, name)
        seen.add(name)
        if file is None or not (
            name.partition(".")[0] in packages or file.is_relative_to(own)
        ):
            continue
        tree = _parsed(file)
        if tree is None:  # such as a module in C
            yield name, file.read_bytes() if file.is_file() else b""
            continue
        is_package = file.name == "__init__.py"
        waiting += _imported(tree, name if is_package else name.rpartition(".")[0])
        yield name, ast.unparse(_without_docstrings(tree)).encode()


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a module of a package may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                parts = each.name.split(".")
                yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds; for an assignment, only plain names."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (each.asname or each.name for each in node.names)
    elif isinstance(node, ast.Assign):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))


def _base(node: ast.ImportFrom, package: str) -> str:
    parents = package.split(".")
    kept = parents[: len(parents) + 1 - node.level] if node.level else []
    return ".".join(filter(None, [*kept, node.module]))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *rest]:
                    node.body = rest
                case _:
                    pass
    return tree
