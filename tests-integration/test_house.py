"""Inside a package, imports point one way, and its private modules stay private.

These tests read the sources and import none of them. Imports for types and imports
inside functions count too, because a reader must follow them as well.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .tools import counts, imports, trips
from .tools.imports import graph, imported

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
PACKAGES = imports.PACKAGES

MAX_LEVELS = 10
"""Longest chain of imports inside a package, without its `__main__`."""


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
def test_no_folders_and_modules_at_the_top_import_each_other(package: Path) -> None:
    assert circle(imports.units(package)) == []


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_chains_of_imports_are_short(package: Path) -> None:
    edges = graph(package)

    @cache
    def level(name: str) -> int:
        return 1 + max(map(level, edges[name]), default=0)

    longest = max(level(name) for name in edges if not name.endswith("__main__"))
    assert longest <= MAX_LEVELS


@pytest.mark.parametrize(
    "job",
    [
        "import obstore",
        "fcntl.flock",
        "os.replace, Path.replace",
        "expanduser",
        "except KeyboardInterrupt, BrokenPipeError",
        "print, sys.stdout.write, sys.stderr.write",
    ],
)
def test_a_job_of_storage_and_of_commands_has_one_module(job: str) -> None:
    (place,) = counts.places(job)

    assert place.startswith("roxxel-store/")


@pytest.mark.parametrize(("job", "most"), [("json.loads", 3), ("is_url(", 3)])
def test_few_modules_do_a_job_that_others_share(job: str, most: int) -> None:
    assert len(counts.places(job)) <= most, counts.places(job)


def test_jobs_of_the_lower_house_pass_through_few_modules(tmp_path: Path) -> None:
    most = {
        "an array to a corpus": (18, 9),
        "an append": (18, 8),
        "a text file to a shard": (29, 18),
        "phases to a sampler": (15, 6),
        "a state to a resumed sampler": (17, 11),
        "documents[i], warm": (6, 3),
        "a window, warm": (5, 1),  # 4, 0 within 10 ms of the last check of a size
    }

    found = trips.trips(tmp_path)

    assert found.keys() == most.keys()
    for name, (modules, returns) in most.items():
        assert len(found[name].modules) <= modules, name
        assert found[name].num_returns <= returns, name


@pytest.mark.parametrize("concept", counts.CONCEPTS)
def test_a_fact_has_one_home(concept: str) -> None:
    assert len(counts.homes(counts.CONCEPTS[concept])) == 1


@pytest.mark.parametrize(
    ("option", "most"),
    [("separator", 12), ("columns", 22), ("pack", 11), ("vocab_size", 12)],
)
def test_few_modules_name_an_option_of_a_write(option: str, most: int) -> None:
    named = counts.modules_naming(option)

    assert len(named) <= most, named


def test_preparation_uses_public_names_of_the_format_and_few() -> None:
    names = counts.names_from("roxxel-prepare", "roxxel_format")
    private = [module for module, _ in names if "._" in module]
    of_a_write = [name for module, name in names if module.endswith(".writing")]

    assert private == []
    assert len(of_a_write) <= 12, of_a_write


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


def test_the_map_names_every_folder_and_module_at_the_top_of_a_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    without = {"errors", "_errors", "_version", "testing", "__init__", "__main__"}
    missing = [
        f"{package.name}/{place.name}"
        for package in PACKAGES
        for place in package.iterdir()
        if (place.suffix == ".py" or (place / "__init__.py").exists())
        and place.stem not in without
        and not re.search(rf"`(\w+/)*{place.stem}(\.py|/|`)", text)
    ]

    assert missing == []


def test_the_guide_for_contributors_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "CONTRIBUTING.md").read_text("utf-8")
    kept = {
        path.relative_to(ROOT).as_posix()
        for folder in ("packages", "docs", "tests-integration")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml"} or path.is_dir()
    } | {"noxfile.py", "pyproject.toml", ".ci/run"}

    names = re.findall(r"[ `(]((?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|toml))?)[` ):]", text)

    assert len(names) > 25
    assert [
        name
        for name in names
        if not any(f"/{path}/".endswith(f"/{name.rstrip('/')}/") for path in kept)
    ] == []


def test_the_drawings_of_the_map_show_the_imports_of_today() -> None:
    outdated = [
        path.name
        for path, drawing in imports.drawings().items()
        if not path.exists() or path.read_text("utf-8") != drawing
    ]

    again = "run `uv run python tests-integration/tools/imports.py` and commit"
    assert not outdated, f"{outdated} show other imports: {again}"


def test_the_path_of_a_batch_names_modules_that_exist() -> None:
    names = {name for package in PACKAGES for name in graph(package)}

    assert [module for _, module, _ in imports.BATCH if module not in names] == []


def test_the_map_shows_every_drawing() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")

    assert [path for path in imports.drawings() if path.name not in text] == []
