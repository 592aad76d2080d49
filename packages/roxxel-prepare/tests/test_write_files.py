"""The public function that writes files as the command does, and workers that die."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_prepare import PartSummary, Progress, commit_files, write_files

from .helpers import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(1, 13):
        rows = [f"row {row} of {number} " * (row % 7) for row in range(200)]
        text = "".join(f"{json.dumps({'body': row})}\n" for row in rows)
        (folder / f"{number}.jsonl").write_text(text, encoding="utf-8")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    assert not [*folder.glob(".*.plan"), *folder.glob(".*.unit")]
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


@pytest.fixture
def expected(tmp_path: Path, inputs: Path) -> dict[str, bytes]:
    """Return the files that the command writes."""
    command = ["write", str(tmp_path / "one" / "c_*.rox"), str(inputs)]
    command += ["--unit-bytes", "9000", "--separator", "0", "--field", "body"]
    assert main(command) == 0
    found = content(tmp_path / "one")
    assert len(found) > 12
    return found


def test_files_are_written_with_the_bytes_of_the_command(
    tmp_path: Path, inputs: Path, expected: dict[str, bytes]
) -> None:
    shown: list[Progress] = []

    [summary] = write_files(
        tmp_path / "two" / "c_*.rox",
        inputs,
        separator=0,
        field="body",
        unit_bytes=9000,
        workers=2,
        progress=shown.append,
    )

    assert not isinstance(summary, PartSummary)
    assert content(tmp_path / "two") == expected
    assert summary.num_documents == 2400
    assert shown[-1].num_done == shown[-1].num_units == len(expected) - 1
    assert shown[-1].is_end
    assert "retr" not in str(shown[-1])


def test_parts_are_committed(
    tmp_path: Path, inputs: Path, expected: dict[str, bytes]
) -> None:
    target = tmp_path / "parts" / "c_*.rox"
    for part in ((1, 2), (0, 2)):
        [summary] = write_files(
            target,
            [inputs / "[1-9].jsonl", inputs / "1?.jsonl"],
            separator=0,
            field="body",
            unit_bytes=9000,
            part=part,
        )
        assert isinstance(summary, PartSummary)

    [committed] = commit_files(target)

    assert committed.num_shards == len(expected) - 1
    assert content(tmp_path / "parts") == expected


def test_a_split_gives_the_held_out_corpus_first(tmp_path: Path, inputs: Path) -> None:
    held_out, rest = write_files(
        tmp_path / "c_*.rox", inputs, field="body", split=("valid", 0.1)
    )

    assert not isinstance(held_out, PartSummary)
    assert not isinstance(rest, PartSummary)
    assert 0 < held_out.num_documents < 600
    assert held_out.num_documents + rest.num_documents == 2400
    assert Roxxel(tmp_path / "c_valid_*.rox").fingerprint == held_out.fingerprint


def test_ray_and_workers_together_are_an_error(tmp_path: Path, inputs: Path) -> None:
    with pytest.raises(ValueError, match="ray='auto' and workers=2: units are written"):
        write_files(tmp_path / "c_*.rox", inputs, workers=2, ray="auto")


_DYING = """
import os, signal
from pathlib import Path
from roxxel_prepare._run.preparation import UnitWriter

write_unit = UnitWriter.write_unit

def dying(self, number):
    # In each of the first processes, one of the units in progress.
    died = Path(os.environ["DIED"])
    if number == 5 and len(list(died.iterdir())) < int(os.environ["DEATHS"]):
        (died / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return write_unit(self, number)

UnitWriter.write_unit = dying
"""


@pytest.fixture
def write_dying(
    tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], list[str]]:
    """Return a function that writes with workers of which this number die.

    It returns the lines of the progress.
    """

    def write(deaths: int) -> list[str]:
        # Each interpreter imports this module first, that of a worker too.
        (tmp_path / "sitecustomize.py").write_text(_DYING, encoding="utf-8")
        (tmp_path / "died").mkdir()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("DIED", str(tmp_path / "died"))
        monkeypatch.setenv("DEATHS", str(deaths))
        lines: list[str] = []
        write_files(
            tmp_path / "two" / "c_*.rox",
            inputs,
            separator=0,
            field="body",
            unit_bytes=9000,
            workers=2,
            progress=lambda each: lines.append(str(each)),
        )
        return lines

    return write


@pytest.mark.parametrize(("deaths", "retries"), [(1, "1 retry"), (2, "2 retries")])
def test_units_of_a_worker_that_died_are_written_again(
    tmp_path: Path,
    expected: dict[str, bytes],
    write_dying: Callable[[int], list[str]],
    deaths: int,
    retries: str,
) -> None:
    lines = write_dying(deaths)

    assert f", {retries}, done, " in lines[-1]
    assert content(tmp_path / "two") == expected


def test_a_unit_whose_workers_always_die_is_an_error_and_the_others_are_kept(
    tmp_path: Path,
    expected: dict[str, bytes],
    write_dying: Callable[[int], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(
        ChildProcessError,
        match=r"in/6\.jsonl: a worker process ended early in unit 5, perhaps for lack",
    ):
        write_dying(100)

    said = capsys.readouterr().err
    assert said.endswith("1 of 12 units failed; the other 11 are kept\n")
    num_units = len(expected) - 1
    assert len([*(tmp_path / "two").glob(".*.unit")]) == num_units - 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"inputs": []}, "inputs is empty"),
        ({"format": "jsonlx"}, "format='jsonlx'.*jsonl"),
        ({"part": (3, 2)}, r"part=\(3, 2\)"),
        ({"part": "0/2"}, "part='0/2'"),
        ({"split": "valid=0.1"}, "split=.*valid"),
        ({"split": ("valid", 2)}, "split=.*between 0 and 1"),
        ({"split": ("../valid", 0.1)}, "split=.*letters"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"unit_bytes": 0}, "unit_bytes must be at least 1"),
        ({"unit_bytes": "64M"}, "unit_bytes must be an integer"),
        ({"shuffle": True}, "shuffle must be an integer"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    tmp_path: Path, inputs: Path, options: dict[str, Any], named: str
) -> None:
    arguments: dict[str, Any] = {"inputs": inputs, "field": "body", **options}

    with pytest.raises((TypeError, ValueError), match=named):
        write_files(tmp_path / "out" / "c_*.rox", **arguments)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("path", "url"), ("skip_bad", "no"), ("bucket_by_length", 512)],
)
def test_an_argument_of_another_kind_is_refused_by_name(
    argument: str, value: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(12).reshape(3, 4))
    arguments: dict[str, Any] = {argument: value}

    with pytest.raises(TypeError, match=f"^{argument} must be"):
        write_files(tmp_path / "c_*.rox", tmp_path / "ids.npy", **arguments)


def test_the_lengths_of_buckets_may_be_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(12).reshape(3, 4))
    lengths: Any = np.array([4])

    found = write_files(
        tmp_path / "c_*.rox", tmp_path / "ids.npy", bucket_by_length=lengths
    )

    assert len(found) == 1


def test_the_size_of_a_unit_may_be_an_integer_of_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(1200).reshape(3, 400))
    size: Any = np.uint8(200)

    write_files(
        tmp_path / "c_*.rox", tmp_path / "ids.npy", vocab_size=2000, unit_bytes=size
    )

    assert Roxxel(tmp_path / "c_*.rox").num_documents == 3


@pytest.mark.parametrize("separator", [1.5, float("nan")])
def test_a_separator_of_another_kind_is_refused_before_a_plan_is_stored(
    tmp_path: Path, inputs: Path, separator: float
) -> None:
    with pytest.raises(TypeError, match=r"separator (1\.5|nan) is not an integer"):
        write_files(tmp_path / "c_*.rox", inputs, separator=separator, dtype="uint16")

    assert [*tmp_path.glob("*c_*")] == []
