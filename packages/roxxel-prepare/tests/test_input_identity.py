"""Which input files a corpus was made from, and what a second write says of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from roxxel_format import Roxxel

from .helpers import main

if TYPE_CHECKING:
    from pathlib import Path

REMEDY = (
    "write elsewhere, or use --exist replace, which deletes the shards from under "
    "every run that trains on them\n"
)


def write(target: Path, *arguments: object) -> int:
    return main(["write", str(target), *map(str, arguments)])


def texts(folder: Path, count: int) -> list[Path]:
    """Write input files that are all modified at the same time."""
    paths = [folder / f"{number}.txt" for number in range(count)]
    for path in paths:
        change(path, b"text of " + path.name.encode())
    return paths


def change(path: Path, data: bytes) -> None:
    """Change a file, and set its time back."""
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))


@pytest.fixture(params=["c.rox", "c_*.rox"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def test_the_same_inputs_are_kept(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 3)
    assert write(target, *inputs) == 0
    (tmp_path / "moved").mkdir()
    moved = [each.rename(tmp_path / "moved" / each.name) for each in inputs]
    capsys.readouterr()

    assert write(target, *moved) == 0

    assert f"kept 39 tokens of {target}: the same" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("end", ["first", "last"])
def test_files_that_differ_only_in_content_are_told_apart(
    size: int,
    end: str,
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = texts(tmp_path, 3)
    data = bytearray(b"x" * size)
    change(inputs[1], bytes(data))
    assert write(target, *inputs) == 0
    data[0 if end == "first" else -1] = ord("y")
    change(inputs[1], bytes(data))
    capsys.readouterr()

    assert write(target, *inputs) == 1

    message = capsys.readouterr().err
    assert message.startswith(
        f"roxxel-prepare: {target}: made from other inputs ({inputs[1]} differs in "
        "its first or last 4096 bytes); "
    )
    assert message.endswith(REMEDY)


@pytest.mark.parametrize(
    ("data", "time", "difference"),
    [
        (b"longer than it was", 10**18, "has 18 bytes, 13 recorded"),
        (b"text of 1.txt", 2 * 10**18, "was modified since"),
    ],
)
def test_an_input_that_differs_is_named(
    data: bytes,
    time: int,
    difference: str,
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = texts(tmp_path, 3)
    assert write(target, *inputs) == 0
    inputs[1].write_bytes(data)
    os.utime(inputs[1], ns=(time, time))
    capsys.readouterr()

    assert write(target, *inputs) == 1

    message = capsys.readouterr().err
    assert f"made from other inputs ({inputs[1]} {difference}" in message
    assert message.endswith(REMEDY)


def test_other_names_and_numbers_of_inputs_are_named(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 3)
    assert write(target, *inputs) == 0
    capsys.readouterr()

    assert write(target, *inputs[:2]) == 1
    assert "made from other inputs (2 given, 3 recorded); " in (capsys.readouterr().err)
    assert write(target, inputs[0], inputs[2], inputs[1]) == 1
    assert f"({inputs[2]} is given instead of 1.txt)" in capsys.readouterr().err
    assert write(target, *inputs, "--format", "lines") == 1
    assert "(format is none in the corpus, lines given)" in capsys.readouterr().err
    assert write(target, *inputs, "--separator", 0) == 1
    expected = (
        f"{target}: made with other arguments (separator is none in the corpus, 0 g"
    )
    assert expected in capsys.readouterr().err


def test_of_very_many_inputs_the_record_is_short_and_names_a_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c_*.rox"
    inputs = texts(tmp_path, 1000)
    assert write(target, *inputs) == 0
    recorded = (tmp_path / "c_manifest.json").stat().st_size
    change(inputs[500], b"Text of 500.txt")
    capsys.readouterr()

    assert write(target, *inputs) == 1

    assert recorded < 10_000
    expected = f"(one of {inputs[496]} to {inputs[511]} differs, or was modified)"
    assert expected in capsys.readouterr().err
    change(inputs[500], b"text of 500.txt")
    assert write(target, *inputs) == 0


def test_python_spells_the_remedy_for_python(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a_*.rox")
    corpus.write([[1]], vocab_size=9)

    with pytest.raises(FileExistsError, match=r"vocab_size is 9 .*, 8 given") as caught:
        corpus.write([[1]], vocab_size=8)

    for remedy in ('exist="append"', "write elsewhere", 'exist="replace"'):
        assert remedy in str(caught.value)


@pytest.mark.parametrize("exist", ["error", "keep"])
def test_the_command_spells_the_remedy_for_the_command(
    exist: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 1)
    assert write(target, *inputs) == 0
    capsys.readouterr()

    assert write(target, *inputs, "--exist", exist, "--separator", 1) == 1

    message = capsys.readouterr().err
    assert "--exist replace" in message
    assert 'exist="' not in message
