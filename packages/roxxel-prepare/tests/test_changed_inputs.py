"""An input that changes during a write is an error that names it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_prepare import write_files

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = b"".join(b'"document %d"\n' % number for number in range(300))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'"more"\n')


def overwrite(path: Path) -> None:
    path.write_bytes(LINES[:20] + b"X" + LINES[21:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(LINES[:-3])


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


CHANGES = [append, overwrite, empty, cut, touch]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for path in paths:
        path.write_bytes(LINES)
    return paths


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("unit_bytes", "skip_bad"), [(2000, False), (4000, True)])
def test_an_input_that_changes_before_its_unit_ends_fails_the_unit(
    change: Callable[[Path], None],
    unit_bytes: int,
    skip_bad: bool,
    inputs: list[Path],
    tmp_path: Path,
) -> None:
    target = tmp_path / "out" / "c_*.rox"

    def progress(state: Any) -> None:
        if state.num_done == state.num_failed == 0:
            change(inputs[2])

    with pytest.raises(OSError, match=f"{inputs[2]}: changed during the write"):
        write_files(
            target, inputs, unit_bytes=unit_bytes, skip_bad=skip_bad, progress=progress
        )

    assert main(["clean", "--abandon", str(target)]) == 0
    assert names_in(target.parent) == []


@pytest.mark.parametrize("change", [append, empty, touch])
def test_an_index_that_changes_before_its_unit_ends_fails_the_unit(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    tokens = tmp_path / "a.ds"
    np.arange(1000, dtype=np.uint16).tofile(tokens)
    index = tmp_path / "a.ds.index"
    np.arange(1, 1001, dtype=np.uint64).tofile(index)
    target = tmp_path / "out" / "c_*.rox"

    def progress(state: Any) -> None:
        if state.num_done == 1 and not state.num_failed:
            change(index)

    with pytest.raises(OSError, match=f"{tokens}: changed .* or its index"):
        write_files(target, [tokens], unit_bytes=500, progress=progress)


def test_a_corpus_of_another_index_is_not_kept(tmp_path: Path) -> None:
    tokens = tmp_path / "a.ds"
    np.arange(8, dtype=np.uint16).tofile(tokens)
    np.array([2, 8], np.uint64).tofile(tmp_path / "a.ds.index")
    write_files(tmp_path / "c_*.rox", [tokens])
    np.array([3, 8], np.uint64).tofile(tmp_path / "a.ds.index")

    with pytest.raises(FileExistsError, match="or its index"):
        write_files(tmp_path / "c_*.rox", [tokens])


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changes_while_one_file_is_written_is_an_error(
    change: Callable[[Path], None],
    inputs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "c.rox"
    Roxxel(target).write(["before"])
    opened: Any = Path.open
    times: Counter[Path] = Counter()

    def changing(self: Path, *arguments: Any, **options: Any) -> Any:
        file = opened(self, *arguments, **options)
        times[self] += 1
        # Inputs are opened once to be recorded, and then to be read.
        if self == inputs[1] and times[self] == 2:
            change(inputs[2])
        return file

    monkeypatch.setattr(Path, "open", changing)
    with pytest.raises(OSError, match=f"{inputs[2]}: changed during the write"):
        write_files(target, inputs, exist="replace")
    assert [bytes(each) for each in Roxxel(target).documents] == [b"before"]


def test_an_input_that_is_deleted_is_named(inputs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(inputs[1])):
        write_files(tmp_path / "c_*.rox", inputs, progress=lambda _: inputs[1].unlink())
