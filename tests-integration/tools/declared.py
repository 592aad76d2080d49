"""Reads what the packages declare, and which modules need the library of an extra.

Tests derive their lists from here, so a new package, extra or module is in them by
itself. The sources are read, and none is imported.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = Path(__file__).parents[2] / "packages"
MEMBERS = sorted(path.name for path in PACKAGES.iterdir())

# Import names that differ from the name of the package that brings them.
BROUGHT_BY = {
    "ml_dtypes": "ml-dtypes",
    "orbax": "orbax-checkpoint",
    "sklearn": "scikit-learn",
}


def project(package: str) -> dict[str, Any]:
    text = (PACKAGES / package / "pyproject.toml").read_text("utf-8")
    return tomllib.loads(text)["project"]


def names(requirements: list[str]) -> set[str]:
    return {Requirement(one).name for one in requirements}


def extras(package: str) -> set[str]:
    several = project(package).get("optional-dependencies", {}).values()
    # The extra `all` names the package itself, with its other extras.
    return {name for one in several for name in names(one)} - {package}


def declared(package: str) -> set[str]:
    """Return all packages that a member may use, with and without its extras."""
    return names(project(package)["dependencies"]) | extras(package)


def import_name(package: str) -> str:
    """Return the name by which a package is imported."""
    of_package = {brought: module for module, brought in BROUGHT_BY.items()}
    return of_package.get(package, package.replace("-", "_"))


def is_of_extra(path: Path) -> bool:
    """Return whether a module needs a library that its package does not require.

    Such a module raises an error when it is imported without: `missing_extra`, or for
    a library that only its users have, that of `modules_of`.
    """
    body = ast.parse(path.read_text("utf-8")).body
    return any(
        isinstance(node, ast.Raise) and "missing_extra(" in ast.unparse(node)
        for block in body
        if isinstance(block, ast.Try)
        for node in ast.walk(block)
    ) or any(isinstance(each, ast.Assign) and wanted_by(each.value) for each in body)


def wanted_by(node: ast.AST) -> set[str]:
    """Return the top modules that a call of `modules_of` imports."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "modules_of":
        return set()
    named = [each for argument in node.args[2:] for each in ast.walk(argument)]
    words = [str(each.value) for each in named if isinstance(each, ast.Constant)]
    return {word.split(".")[0] for word in words}


def imported_by(node: ast.AST) -> set[str]:
    """Return the top modules that a statement imports; none where it is another."""
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        modules = [node.module]
    return {module.split(".")[0] for module in modules}


def brought_by(module: str) -> str:
    """Return the package that a module comes with."""
    return BROUGHT_BY.get(module, module.replace("_", "-"))


def imported_at_once(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a module imports when it is itself imported, and where."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        for name in imported_by(node):
            line = getattr(node, "lineno", 0)
            yield brought_by(name), f"{path.relative_to(PACKAGES)}:{line}"
