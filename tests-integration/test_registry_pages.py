"""The page of a package in a registry is right, and needs no other file.

`test_docs.py` tests that the examples of each README run.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .tools import address, release

ROOT = Path(__file__).parents[1]
MEMBERS = {member.name: member for member in release.read_members()}
ADDRESS = address.configured()
PAGES = [page for page in address.pages() if page.name != "CHANGELOG.md"]
INSTALLS = re.compile(r"\b(?:pip install|uv add)\s+(?!--no-index)([^`\n]+)")
BY_PACKAGE = pytest.mark.parametrize("package", MEMBERS)


def project(package: str) -> dict[str, Any]:
    text = (ROOT / "packages" / package / "pyproject.toml").read_text("utf-8")
    return tomllib.loads(text)["project"]


def readme(package: str) -> str:
    return (ROOT / "packages" / package / "README.md").read_text("utf-8")


def members_needed(package: str) -> set[str]:
    needs = MEMBERS[package].needs
    return {package}.union(*map(members_needed, needs))


@BY_PACKAGE
def test_the_readme_installs_from_the_checkout_with_all_members_needed(
    package: str,
) -> None:
    # Left out, a member would be looked for in an index, which may hold another.
    every = " ".join(f"./packages/{name}" for name in MEMBERS)
    text = readme(package).replace("./packages/*", every)
    commands = re.findall(r"pip install ((?:\./packages/[a-z-]+ ?)+)", text)

    installed = [set(re.findall(r"packages/([a-z-]+)", one)) for one in commands]

    assert any(members_needed(package) <= some for some in installed)


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_a_page_that_installs_warns_of_the_other_project(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = [command.split("&&")[0].split() for command in INSTALLS.findall(text)]
    words = {word.strip("\"'") for command in commands for word in command}

    if any("roxxel" in word for word in words):
        assert address.notice(ADDRESS) in " ".join(text.split())
    assert [word for word in words if re.match(r"roxxel\b", word)] == []


@BY_PACKAGE
def test_the_readme_links_to_nothing_beside_it(package: str) -> None:
    links = re.findall(r"\]\((.*?)\)", readme(package))

    assert [link for link in links if not link.startswith("https://")] == []


@BY_PACKAGE
def test_the_readme_names_pages_of_the_documentation(package: str) -> None:
    pages = re.findall(r"`(docs/[\w./-]+\.md)`", readme(package))

    assert pages
    assert all((ROOT / page).exists() for page in pages)


@BY_PACKAGE
def test_the_project_says_the_same_as_the_others(package: str) -> None:
    first = project("roxxel-format")
    own = project(package)

    assert own["classifiers"] == first["classifiers"]
    # A package may exclude broken releases of Python, but starts at the same one.
    assert own["requires-python"].split(",")[0] == first["requires-python"]
    assert own["readme"] == "README.md"
    assert own["name"] == package
    assert own.get("urls", {}) == address.urls(ADDRESS, package)


@BY_PACKAGE
def test_the_licence_comes_along(package: str) -> None:
    folder = ROOT / "packages" / package
    others = sorted(folder.glob("src/**/*LICENSE*"))  # of what the package ships

    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project(package)["license-files"] == [
        "LICENSE",
        *(path.relative_to(folder).as_posix() for path in others),
    ]
    assert project(package)["license"] == (
        "Apache-2.0 AND MIT" if others else "Apache-2.0"
    )


def test_an_address_that_is_set_is_shown_by_packages_and_pages() -> None:
    host = "https://git.example/roxxel"
    path = ROOT / "packages/roxxel-format/pyproject.toml"
    bare = address.with_urls(path.read_text("utf-8"), "", "roxxel-format")
    page = address.with_notice(readme("roxxel-format"), "")

    told = address.with_urls(bare, host, "roxxel-format")
    shown = " ".join(address.with_notice(page, host).split())

    assert tomllib.loads(told)["project"]["urls"]["Repository"] == host
    assert f'pip install "git+{host}#subdirectory=packages/NAME"' in shown
    assert address.with_urls(told, "", "roxxel-format") == bare
    assert address.with_notice(address.with_notice(page, host), "") == page


def test_a_page_shows_no_placeholder_for_the_address() -> None:
    for page in PAGES:
        assert "git+URL" not in page.read_text("utf-8"), page


def test_the_start_page_lists_all_extras() -> None:
    table = (ROOT / "docs" / "install.md").read_text("utf-8").partition("| extra |")[2]
    listed = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]

    names = re.findall(r"`(\w+)`", " ".join(listed))
    assert sorted(names) == sorted(project("roxxel")["optional-dependencies"])
