"""Each package imports only what the design lets it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "packages"

# The table of the design: what a package may depend on without an extra.
MAY_DEPEND_ON = {
    "roxxel-format": {"numpy"},
    "roxxel-curriculum": {"numpy", "roxxel-format"},
    "roxxel-loader": {"jax", "numpy", "roxxel-curriculum"},
    "roxxel-ckpt": {"jax", "flax", "orbax-checkpoint"},
    "roxxel-train": {
        *("flax", "jax", "numpy", "optax"),
        *("roxxel-ckpt", "roxxel-curriculum", "roxxel-format", "roxxel-loader"),
    },
    "roxxel": {
        *("flax", "jax", "numpy", "optax", "roxxel-ckpt", "roxxel-curriculum"),
        *("roxxel-format", "roxxel-loader", "roxxel-train"),
    },
}

BY_PACKAGE = pytest.mark.parametrize("package", sorted(MAY_DEPEND_ON))


def requirement_name(requirement: str) -> str:
    return (
        requirement.split(";", maxsplit=1)[0]
        .split("[", maxsplit=1)[0]
        .rstrip("<>=!~., 0123456789")
    )


def declared(package: str) -> dict[str, list[str]]:
    text = (PACKAGES / package / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project.get("optional-dependencies", {})
    return {
        "needs": project["dependencies"],
        "extras": [one for several in extras.values() for one in several],
    }


# What comes with a declared package and is imported by name all the same.
COMES_ALONG = {"roxxel-ckpt": {"numpy", "etils"}}

# Import names that differ from the name of the package that brings them.
BROUGHT_BY = {"orbax": "orbax-checkpoint", "ml_dtypes": "ml-dtypes"}


def imported(package: str) -> set[str]:
    """Return the packages that the sources of `package` import, Python's own aside."""
    names: set[str] = set()
    for path in (PACKAGES / package / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    others = names - set(sys.stdlib_module_names) - {package.replace("-", "_")}
    return {BROUGHT_BY.get(name, name.replace("_", "-")) for name in others}


def test_all_packages_are_known() -> None:
    assert {path.name for path in PACKAGES.iterdir()} == set(MAY_DEPEND_ON)


@BY_PACKAGE
def test_package_declares_only_what_the_design_allows(package: str) -> None:
    names = {requirement_name(one) for one in declared(package)["needs"]}

    assert names <= MAY_DEPEND_ON[package]


@BY_PACKAGE
def test_members_are_required_by_a_compatible_range(package: str) -> None:
    needs = [one for one in declared(package)["needs"] if one.startswith("roxxel")]

    assert all(">=0.1,<0.2" in one for one in needs)


@BY_PACKAGE
def test_what_is_imported_is_declared(package: str) -> None:
    known = {
        requirement_name(one)
        for several in declared(package).values()
        for one in several
    }

    assert imported(package) <= known | COMES_ALONG.get(package, set())


@BY_PACKAGE
def test_imports_point_one_way(package: str) -> None:
    members = {name for name in imported(package) if name.startswith("roxxel")}

    assert members <= MAY_DEPEND_ON[package]


@pytest.mark.parametrize("name", ["roxxel_format", "roxxel_curriculum", "roxxel"])
def test_import_starts_no_accelerator_library(name: str) -> None:
    program = (
        f"import {name}, sys\n"
        "found = {'jax', 'flax', 'orbax'} & set(sys.modules)\n"
        "assert not found, found\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
