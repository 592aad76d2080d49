"""The command that installs a missing extra works where the program runs."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_store import MissingExtraError, missing_extra, roxxel_command

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.org/roxxel"
CHECKOUT = {"url": "file:///a%20b/packages/roxxel-some", "dir_info": {"editable": True}}
"""A package that is editable, in an environment that is not its workspace's."""
FOLDER = {"url": "file:///a/packages/roxxel-some", "dir_info": {}}
REPOSITORY = {
    "url": URL,
    "vcs_info": {"vcs": "git", "commit_id": "0"},
    "subdirectory": "packages/some",
}


def install(
    environment: Path,
    origin: dict[str, Any],
    installer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make a package importable that a program has installed in an environment."""
    site = environment / "lib" / "site-packages"
    record = site / "roxxel_some-0.1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Name: roxxel-some\nVersion: 0.1.0\n")
    (record / "INSTALLER").write_text(f"{installer}\n")
    if origin:
        (record / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)


@pytest.mark.parametrize(
    ("origin", "installer", "is_uv_run", "command"),
    [
        (CHECKOUT, "uv", True, "uv run --with '/a b/packages/roxxel-some[zip]' ..."),
        (CHECKOUT, "uv", False, 'uv pip install -e "/a b/packages/roxxel-some[zip]"'),
        (CHECKOUT, "pip", False, 'pip install -e "/a b/packages/roxxel-some[zip]"'),
        (FOLDER, "pip", False, 'pip install "/a/packages/roxxel-some[zip]"'),
        (FOLDER, "uv", False, 'uv pip install "/a/packages/roxxel-some[zip]"'),
        (FOLDER, "uv", True, "uv run --with '/a/packages/roxxel-some[zip]' ..."),
        (
            REPOSITORY,
            "pip",
            False,
            f'pip install "roxxel-some[zip] @ git+{URL}#subdirectory=packages/some"',
        ),
        ({}, "pip", False, 'pip install "roxxel-some[zip]"'),
    ],
)
def test_command_follows_from_how_the_package_was_installed(
    origin: dict[str, Any],
    installer: str,
    is_uv_run: bool,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tmp_path, origin, installer, monkeypatch)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    if is_uv_run:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")

    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")

    assert str(error) == f"reading t.zip needs zipper; install it: {command}"
    assert error.command == command
    assert error.name == "zipper"
    assert isinstance(error, MissingExtraError)


def test_the_environment_of_a_workspace_gets_an_extra_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b" / "packages" / "roxxel-some"
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    install(tmp_path / "a b" / ".venv", origin, "uv", monkeypatch)

    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")

    assert f"uv sync --project '{folder}' --inexact --extra zip" in str(error)
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")
    assert str(error).endswith("install it: uv run --extra zip ...")


def test_an_environment_that_is_not_active_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, CHECKOUT, "uv", monkeypatch)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)

    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")

    assert f"uv pip install --python {sys.executable} -e" in str(error)


@pytest.mark.parametrize(
    ("scripts", "command"),
    [
        ("", "roxxel-format info"),
        ("roxxel = roxxel:run\n", "roxxel-format info"),  # of the public index
        ("roxxel = roxxel.cli:main\n", "roxxel format info"),
    ],
)
def test_a_command_has_the_form_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: str, command: str
) -> None:
    record = tmp_path / "roxxel-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: roxxel\nVersion: 0.1.0\n")
    (record / "entry_points.txt").write_text(f"[console_scripts]\n{scripts}")
    importlib.import_module("importlib.metadata")  # not found on the path below
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert roxxel_command("format info") == command
