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
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from .tools import release

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGES = Path(__file__).parents[1] / "packages"

# The table of the design: what a package may depend on without an extra.
MAY_DEPEND_ON = {
    "roxxel-store": set[str](),
    "roxxel-format": {"numpy", "roxxel-store"},
    "roxxel-curriculum": {"numpy", "roxxel-format", "roxxel-store"},
    "roxxel-loader": {"jax", "numpy", "roxxel-curriculum", "roxxel-store"},
    "roxxel-ckpt": {"jax", "flax", "orbax-checkpoint", "roxxel-store"},
    "roxxel-train": {
        *("flax", "jax", "numpy", "optax"),
        *("roxxel-ckpt", "roxxel-curriculum", "roxxel-format", "roxxel-loader"),
        "roxxel-store",
    },
    "roxxel": {
        *("flax", "jax", "msgspec", "numpy", "optax", "plotly", "tomlkit"),
        *("roxxel-ckpt", "roxxel-curriculum", "roxxel-format", "roxxel-loader"),
        *("roxxel-store", "roxxel-train"),
    },
}

# Extras of members that a package may bring to everybody who installs it.
MAY_BRING_EXTRAS = {
    "roxxel": {"roxxel-curriculum": {"rich"}, "roxxel-train": {"progress"}},
}

# Packages that are imported without being declared: a declared package brings them, or
# the code also works without them.
UNDECLARED = {
    "roxxel-ckpt": {"numpy", "etils", "tensorstore"},
    "roxxel-format": {"ml-dtypes"},
    "roxxel-train": {"kubernetes"},
    "roxxel": {"rich"},
}

# Import names that differ from the name of the package that brings them.
BROUGHT_BY = {"orbax": "orbax-checkpoint", "ml_dtypes": "ml-dtypes"}

# Modules that may import the library of an extra as soon as they are imported.
MODULES_OF_EXTRAS = {
    "roxxel-format": {"ray.py", "testing.py"},
    "roxxel-curriculum": {"_plan/picture.py"},
    "roxxel-loader": {
        f"datasets/{name}.py" for name in ("arrow", "huggingface", "polars")
    },
    "roxxel-train": {"tensorboard.py", "wandb.py"},
}

# `import_module("jax")` and its like import too.
LAZILY = re.compile(r"(importlib\.)?(import_module|__import__|find_spec)\('\w")

BY_PACKAGE = pytest.mark.parametrize("package", sorted(MAY_DEPEND_ON))


def project(package: str) -> dict[str, Any]:
    text = (PACKAGES / package / "pyproject.toml").read_text("utf-8")
    return tomllib.loads(text)["project"]


def names(requirements: list[str]) -> set[str]:
    return {Requirement(one).name for one in requirements}


def extras(package: str) -> set[str]:
    several = project(package).get("optional-dependencies", {}).values()
    # The extra `all` names the package itself, with its other extras.
    return {name for one in several for name in names(one)} - {package}


def imports(package: str) -> dict[str, str]:
    """Return where the sources import each package, Python's own and itself aside."""
    found: dict[str, str] = {}
    own = {*sys.stdlib_module_names, package.replace("-", "_")}
    for path in sorted((PACKAGES / package / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and LAZILY.match(ast.unparse(node)):
                modules = {ast.literal_eval(node.args[0]).split(".")[0]}
            else:
                modules = imported_by(node)
            for name in modules - own:
                place = f"{path.relative_to(PACKAGES)}:{getattr(node, 'lineno', 0)}"
                found.setdefault(brought_by(name), place)
    return found


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


def check_none(findings: Iterable[str]) -> None:
    """Fail with the findings alone: where in this file they arose says nothing."""
    if lines := "\n".join(findings):
        pytest.fail(lines, pytrace=False)


def test_all_packages_are_known() -> None:
    assert {path.name for path in PACKAGES.iterdir()} == set(MAY_DEPEND_ON)


@BY_PACKAGE
def test_package_holds_no_file_of_a_run(package: str) -> None:
    # Examples of a README once ran in its folder, and their files were committed.
    held = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "src", "tests"}
    tracked = subprocess.run(
        ["git", "ls-files", package],  # noqa: S607 - of the user's path
        cwd=PACKAGES,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert {path.split("/")[1] for path in tracked} == held


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
    allowed = MODULES_OF_EXTRAS.get(package, set())

    check_none(
        f"{place} imports {name} at once, but only an extra of {package} installs "
        f"{name}; import it in the function that uses it"
        for name, place in sorted(imported_at_once(package))
        if name in optional and place.split(":")[0].split("/", 3)[3] not in allowed
    )


def imported_at_once(package: str) -> Iterator[tuple[str, str]]:
    """Yield what each module imports when it is itself imported, and where."""
    for path in (PACKAGES / package / "src").rglob("*.py"):
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


@BY_PACKAGE
def test_no_extra_brings_a_package_that_stands_above(package: str) -> None:
    members = extras(package) & set(MAY_DEPEND_ON)

    assert members <= MAY_DEPEND_ON[package]


def test_only_the_report_imports_plotly() -> None:
    assert imports("roxxel")["plotly"].startswith("roxxel/src/roxxel/report/")
    assert "plotly" not in {name for name, _ in imported_at_once("roxxel")}


def test_members_are_required_by_a_compatible_range() -> None:
    check_none(release.range_refusals(release.read_members()))
