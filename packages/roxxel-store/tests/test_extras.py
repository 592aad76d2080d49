"""The command that installs a missing extra works where the program runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_store import MissingExtraError, missing_extra

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.org/roxxel"
CHECKOUT = {"url": "file:///a%20b/packages/roxxel-some", "dir_info": {"editable": True}}
FOLDER = {"url": "file:///a/packages/roxxel-some", "dir_info": {}}
REPOSITORY = {
    "url": URL,
    "vcs_info": {"vcs": "git", "commit_id": "0"},
    "subdirectory": "packages/some",
}


@pytest.mark.parametrize(
    ("origin", "installer", "is_uv_run", "command"),
    [
        (CHECKOUT, "uv", True, "uv run --extra zip ..."),
        (
            CHECKOUT,
            "uv",
            False,
            "uv sync --project '/a b/packages/roxxel-some' --inexact --extra zip",
        ),
        (CHECKOUT, "pip", False, 'pip install "/a b/packages/roxxel-some[zip]"'),
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
    record = tmp_path / "roxxel_some-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: roxxel-some\nVersion: 0.1.0\n")
    (record / "INSTALLER").write_text(f"{installer}\n")
    if origin:
        (record / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    if is_uv_run:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")

    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")

    assert str(error) == f"reading t.zip needs zipper; install it: {command}"
    assert error.name == "zipper"
    assert isinstance(error, MissingExtraError)
