"""Each package imports and requires only what the design allows.

These tests read the sources and import none of them, so they need no installed package.
They run before all other tests, because a forbidden import should be reported here, and
not by the failures that it causes elsewhere.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from .tools import release
from .tools.declared import (
    PACKAGES,
    brought_by,
    extras,
    imported_at_once,
    imported_by,
    is_of_extra,
    names,
    project,
    wanted_by,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The table of the design: what a package may depend on without an extra.
MAY_DEPEND_ON = {
    "roxxel-store": set[str](),
    "roxxel-format": {"numpy", "roxxel-store"},
    "roxxel-prepare": {"numpy", "roxxel-format", "roxxel-store"},
    "roxxel-curriculum": {"numpy", "roxxel-format", "roxxel-store"},
    "roxxel-loader": {"jax", "numpy", "roxxel-curriculum", "roxxel-store"},
    "roxxel-ckpt": {"jax", "flax", "orbax-checkpoint", "roxxel-store"},
    "roxxel-train": {
        *("flax", "jax", "msgspec", "numpy", "optax"),
        *("roxxel-ckpt", "roxxel-curriculum", "roxxel-format", "roxxel-loader"),
        "roxxel-store",
    },
    "roxxel": {
        *("flax", "jax", "msgspec", "numpy", "optax", "tomlkit"),
        *("roxxel-ckpt", "roxxel-curriculum", "roxxel-format", "roxxel-loader"),
        *("roxxel-prepare", "roxxel-store", "roxxel-train"),
    },
}

# Extras of members that a package may bring to everybody who installs it.
MAY_BRING_EXTRAS = {
    "roxxel": {"roxxel-train": {"progress"}},
}

# Packages that are imported without being declared: a declared package brings them, or
# the code also works without them.
UNDECLARED = {
    "roxxel-ckpt": {"numpy", "etils", "tensorstore"},
    # Loads a tokenizer by its name, if it is installed.
    "roxxel-format": {"ml-dtypes", "roxxel-prepare"},
    # Its users have it: no index has a small one for every machine. Only type checkers
    # read `typing_extensions`, and they bring it.
    "roxxel-curriculum": {"torch", "olmo-core", "torchtitan", "typing-extensions"},
    "roxxel-loader": {"maxtext", "levanter", "tunix", "typing-extensions"},
    # What a launcher brings, or JAX asks for the processes that it has started.
    "roxxel-train": {"kubernetes", "mpi4py", "ray"},
}

# `import_module("jax")` and its like import too.
LAZILY = re.compile(r"(importlib\.)?(import_module|__import__|find_spec)\('\w")

BY_PACKAGE = pytest.mark.parametrize("package", sorted(MAY_DEPEND_ON))


def imports(package: str) -> dict[str, str]:
    """Return where the sources import each package, Python's own and itself aside."""
    found: dict[str, str] = {}
    own = {*sys.stdlib_module_names, package.replace("-", "_")}
    for path in sorted((PACKAGES / package / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and LAZILY.match(ast.unparse(node)):
                modules = {ast.literal_eval(node.args[0]).split(".")[0]}
            else:
                modules = imported_by(node) | wanted_by(node)
            for name in modules - own:
                place = f"{path.relative_to(PACKAGES)}:{getattr(node, 'lineno', 0)}"
                found.setdefault(brought_by(name), place)
    return found


def check_none(findings: Iterable[str]) -> None:
    """Fail with the findings alone: where in this file they arose says nothing."""
    if lines := "\n".join(findings):
        pytest.fail(lines, pytrace=False)


def tracked(folder: Path) -> list[str]:
    """Return the committed files of a folder, as paths from there."""
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607 - of the user's path
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def test_the_top_level_holds_what_the_design_names() -> None:
    found = {path.split("/")[0] for path in tracked(PACKAGES.parent)}

    assert {name for name in found if not name.startswith(".")} == {
        *("LICENSE", "README.md", "docs", "noxfile.py", "packages"),
        *("pyproject.toml", "tests-integration"),
    }


def test_all_packages_are_known() -> None:
    assert {path.name for path in PACKAGES.iterdir()} == set(MAY_DEPEND_ON)


@BY_PACKAGE
def test_package_holds_no_file_of_a_run(package: str) -> None:
    # Examples of a README once ran in its folder, and their files were committed.
    held = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "src", "tests"}

    assert {path.split("/")[0] for path in tracked(PACKAGES / package)} == held


@BY_PACKAGE
def test_package_declares_only_what_the_design_allows(package: str) -> None:
    beyond = names(project(package)["dependencies"]) - MAY_DEPEND_ON[package]

    check_none(
        f"{package} depends on {name}; it may depend on "
        f"{sorted(MAY_DEPEND_ON[package])} alone, and all else is an extra"
        for name in sorted(beyond)
    )


@BY_PACKAGE
def test_package_brings_no_extra_that_the_design_does_not_allow(package: str) -> None:
    allowed = MAY_BRING_EXTRAS.get(package, {})

    check_none(
        f"{package} requires {one.name}[{','.join(sorted(one.extras))}], which brings "
        f"to everybody what is an extra there; only {allowed or 'none'} may be asked"
        for one in map(Requirement, project(package)["dependencies"])
        if one.extras - allowed.get(one.name, set())
    )


@BY_PACKAGE
def test_package_imports_only_what_it_declares(package: str) -> None:
    declared = names(project(package)["dependencies"]) | extras(package)
    known = declared | UNDECLARED.get(package, set())

    check_none(
        f"{place} imports {name}, which {package} does not declare; "
        f"it may import {', '.join(sorted(known))}"
        for name, place in imports(package).items()
        if name not in known
    )


@BY_PACKAGE
def test_what_an_extra_brings_is_imported_with_its_module_alone(package: str) -> None:
    optional = extras(package) - names(project(package)["dependencies"])

    check_none(
        f"{place} imports {name} at once, but only an extra of {package} installs "
        f"{name}; import it in the function that uses it"
        for path in sorted((PACKAGES / package / "src").rglob("*.py"))
        if not is_of_extra(path)
        for name, place in sorted(imported_at_once(path))
        if name in optional
    )


@BY_PACKAGE
def test_no_extra_brings_a_package_that_stands_above(package: str) -> None:
    members = extras(package) & set(MAY_DEPEND_ON)

    assert members <= MAY_DEPEND_ON[package]


def test_members_are_required_by_a_compatible_range() -> None:
    check_none(release.range_refusals(release.read_members()))
