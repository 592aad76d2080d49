"""Records of a preparation that are damaged: the plan, and the records of units."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from roxxel_format import Roxxel

from .helpers import main


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def documents(target: Path) -> list[bytes]:
    with Roxxel(str(target)) as corpus:
        return [each.tobytes() for each in corpus.documents]


@pytest.fixture
def part(tmp_path: Path) -> list[object]:
    """Write the only part of a preparation of three units; return the command."""
    rows = [json.dumps({"text": "ab" * n, "id": f"d{n}"}) for n in range(60)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    target = tmp_path / "c" / "c_*.rox"
    command: list[object] = [
        "write",
        target,
        path,
        "--unit-bytes",
        1500,
        "--document-id",
        "id",
    ]
    command += ["--part", "0/1"]
    assert run(*command) == 0
    return command


def record(part: list[object], kind: str) -> Path:
    """Return the path of the plan, or of the record of the first unit."""
    target = part[1]
    assert isinstance(target, Path)
    return min(target.parent.glob(f".*.{kind}"))


@pytest.mark.parametrize("kind", ["unit", "plan"])
def test_a_flipped_bit_in_a_record_commits_nothing_and_loses_nothing(
    part: list[object], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = part[1], record(part, kind)
    assert isinstance(target, Path)
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 60)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)

        assert run("write", target, "--commit") == 1

        error = capsys.readouterr().err
        assert "0 (" in error if kind == "unit" else str(path) in error
    if kind == "plan":
        path.unlink()  # As the message says.
    assert run(*part) == 0
    assert path.read_bytes() == data
    assert run("write", target, "--commit") == 0
    assert documents(target) == [b"ab" * n for n in range(60)]


def test_clean_keeps_the_units_of_a_damaged_plan(
    part: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = part[1], record(part, "plan")
    assert isinstance(target, Path)
    path.write_bytes(path.read_bytes().replace(b'"job":"', b'"job":"0'))
    files = sorted(target.parent.iterdir())

    assert run("clean", target) == 1

    assert str(path) in capsys.readouterr().err
    assert sorted(target.parent.iterdir()) == files
    assert run("clean", "--abandon", target) == 0
    assert not [*target.parent.glob("*.rox"), *target.parent.glob(".*.unit")]


def test_another_write_keeps_the_units_of_a_damaged_plan(
    part: list[object], tmp_path: Path
) -> None:
    target, path = part[1], record(part, "plan")
    assert isinstance(target, Path)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    units = sorted(target.parent.glob(".*.unit"))
    saved = tmp_path / "saved"
    shutil.copytree(target.parent, saved)

    Roxxel(str(target)).write([b"other"], exist="replace", max_shard_bytes=1 << 20)

    assert sorted(target.parent.glob(".*.unit")) == units
    assert {each.name for each in saved.glob("*.rox")} <= {
        each.name for each in target.parent.glob("*.rox")
    }


@pytest.mark.parametrize("kind", ["unit", "plan"])
def test_a_record_of_another_release_is_not_called_damaged(
    part: list[object], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from roxxel_store.records import seal

    path = record(part, kind)
    table = json.loads(path.read_bytes())
    del table["crc32"]
    path.write_bytes(seal(table | {"version": 2}))

    assert run("write", part[1], "--commit") == 1

    error = capsys.readouterr().err
    assert str(path) in error
    assert "version 2" in error
    assert "damaged" not in error
