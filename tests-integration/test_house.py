"""Inside a package, imports point one way, and its private modules stay private.

These tests read sources and load none of them. Imports for types and imports inside
functions count too: a reader has to follow them all the same.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/*/__init__.py"))
PACKAGES = [source.parent for source in SOURCES]

MAX_LEVELS = 9
"""Longest chain of imports inside a package, without its `__main__`."""


@cache
def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by the name of their module."""
    found: dict[str, Path] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def imported(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield every import of a file: a module, and the name taken from it or nothing."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*above, *filter(None, [module])])
            yield from ((module, alias.name) for alias in node.names)


@cache
def graph(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules imports."""
    names = modules(package)
    edges: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for module, attribute in imported(path, name):
            inner = f"{module}.{attribute}"
            target = inner if inner in names else module
            if target in names and target != name:
                edges[name].add(target)
    return edges


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of one circle, in order; empty if there is none."""
    done: set[str] = set()

    def search(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(edges.get(node, ())):
            found = search(target, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    return next(filter(None, (search(node, []) for node in sorted(edges))), [])


def named(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_no_modules_import_each_other(package: Path) -> None:
    assert circle(graph(package)) == []


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_no_folders_import_each_other(package: Path) -> None:
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for name, targets in graph(package).items():
        own = name.split(".")[1:-1]
        for target in targets:
            other = target.split(".")[1:-1]
            if own and other and own[0] != other[0]:
                edges[own[0]].add(other[0])

    assert circle(edges) == []


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_chains_of_imports_are_short(package: Path) -> None:
    edges = graph(package)

    @cache
    def level(name: str) -> int:
        return 1 + max(map(level, edges[name]), default=0)

    longest = max(level(name) for name in edges if not name.endswith("__main__"))
    assert longest <= MAX_LEVELS


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_tests_reach_into_no_other_package(package: Path) -> None:
    """The tests of a package see the public names of the others alone."""
    tests = package.parents[1] / "tests"
    private = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in tests.rglob("*.py")
        for module, attribute in imported(path, path.stem)
        if module.split(".")[0] in {other.name for other in PACKAGES} - {package.name}
        and any(part.startswith("_") for part in [*module.split("."), attribute])
    ]

    assert private == []


def test_the_map_names_what_exists() -> None:
    """Every folder and module that `docs/architecture.md` names is in a package."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    places = {
        place.with_suffix("").as_posix()
        for package in PACKAGES
        for place in (package, *package.rglob("*"))
        if place.suffix == ".py" or place.is_dir()
    }

    def exists(name: str) -> bool:
        end = "/" + name.removesuffix(".py").strip("/").replace(".", "/")
        return any(place.endswith(end) for place in places)

    names = re.findall(r"`([a-z_]+(?:[./][a-z_]+)*/?)`", text)
    assert [name for name in names if not exists(name)] == []
