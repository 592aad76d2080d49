"""What a message says of a missing extra, and how it spells a command."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest
from roxxel_store import missing_extra, modules_of, roxxel_command

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_library_names_package_and_extra() -> None:
    error = missing_extra("reading t.zip", "zipper", "roxxel-some", "zip")

    assert str(error).startswith("reading t.zip needs zipper; ")
    assert '"roxxel-some[zip]"' in str(error)
    assert error.name == "zipper"


def test_a_missing_framework_names_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"my.bridge .*install torchzip") as e:
        modules_of("my.bridge", "torchzip", "json", "zip_of_torch.parts")

    assert e.value.name == "zip_of_torch"


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
