"""The code behind the functions that a config names, read without importing it.

A module that a user writes imports JAX, and may print or load files, so `roxxel plan`
and a sweep read its source instead.
"""

from __future__ import annotations

import ast
import hashlib
from typing import TYPE_CHECKING

from roxxel.config._modules import module_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from roxxel.config._declaration import RunConfig


def parsed(file: Path) -> ast.Module | None:
    """Return the source of a module; None if it cannot be read."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def functions_of(config: RunConfig) -> list[str]:
    """Return each `"module:function"` that a config names."""
    named = [config.model, config.trainer.eval_fn, config.trainer.train_step]
    return [*filter(None, named)]


def definitions_of(folder: Path, text: str, last: str) -> list[tuple[str, str]]:
    """Return the modules that may define a `"module:function"`, and its names there.

    A module may import the function from a second one, which may import it from a
    third. Imports of `last`, another `"module:function"`, are not followed.
    """
    module, _, function = text.partition(":")
    found = [(module, function)]
    for name, wanted in found:
        file = module_file(folder, name)
        tree = parsed(file) if file else None
        if file is None or tree is None or f"{name}:{wanted}" == last:
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


def code_digest(config: RunConfig) -> str:
    """Return a digest of the model's code, which comments and layout do not change.

    The code is that of the modules that define the model's function, `eval_fn` and
    `train_step`, and of what they import from the config's folder or from their own
    package. So another machine or another version of JAX has the same digest. Names
    that are imported at run time (`importlib`), and files that the code reads, are not
    part of it.
    """
    digest = hashlib.sha256()
    for name, code in sorted(_modules(config.folder, functions_of(config))):
        digest.update(f"{name} {len(code)}\n".encode())
        digest.update(code)
    return digest.hexdigest()


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
        tree = parsed(file)
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
