"""Preparations that meet a full disk, damaged inputs, a huge document, a twin."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from roxxel_format import Roxxel, WriteSummary
from roxxel_format.writing import Place
from roxxel_prepare._inputs import documents
from roxxel_prepare._inputs.documents import documents_in
from roxxel_prepare._run import preparation

from .extras.full_disk import written_on_a_full_disk
from .helpers import main

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = sys.executable, "-m", "roxxel_prepare"


class Killed(BaseException):
    """Ends a program where it is raised."""


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def lines(path: Path, count: int, seed: int = 0, longest: int = 1000) -> Path:
    """Write JSON lines of 2 to less than twice `longest` letters."""
    chosen = random.Random(seed)
    rows = (json.dumps("ab" * chosen.randrange(1, longest)) for _ in range(count))
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a corpus, and check that there are no others but locks."""
    hidden = {path.suffix for path in folder.glob(".*")}
    assert hidden <= {".lock", ".writers"}
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_error_and_the_same_command_goes_on(
    tmp_path: Path, workers: int
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    inputs = lines(tmp_path / "a.jsonl", 1500)
    options = [str(inputs), "--unit-bytes", "100K", "--separator", "0"]
    assert run("write", tmp_path / "one" / "c_*.rox", *options) == 0

    [full, clean, again, cleaned], kept = written_on_a_full_disk(
        folder, tmp_path / "copy", *options, "--workers", str(workers)
    )

    code, [notice, error] = full
    assert code == 1
    assert notice.startswith(f"{folder}/c_*.rox: 1 of 14 units failed and stopped the ")
    assert re.fullmatch(
        rf"roxxel-prepare: {folder}/\S+: No space left on device; the new file was "
        "discarded, so make room and write again",
        error,
    )
    assert len(kept) >= 4
    assert all(kept)
    assert "units are done already" in again[1][0]
    assert [clean[0], again[0], cleaned[0]] == [0, 0, 0]
    assert content(tmp_path / "copy") == content(tmp_path / "one")


@pytest.mark.parametrize("workers", [2])
def test_a_file_that_may_not_grow_is_named_once(tmp_path: Path, workers: int) -> None:
    """A limit of the size of files stops a write as a full disk does."""
    inputs = lines(tmp_path / "a.jsonl", 600)
    target = tmp_path / "c_*.rox"
    command = [*COMMAND, "write", target, inputs, "--unit-bytes", "100K"]
    command += ["--workers", workers]
    words = [str(each) for each in command]
    limits = f"""
import resource, signal, subprocess, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
sys.exit(subprocess.run({words!r}, restore_signals=False).returncode)
"""
    done = subprocess.run(
        [sys.executable, "-c", limits], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    _, error = done.stderr.splitlines()
    assert "_000.rox: File too large; the new file was discarded, so make" in error

    assert run(*words[3:]) == 0
    assert Roxxel(target).verify().ok


def damaged(folder: Path, kind: str) -> str:
    """Write five inputs, of which one is damaged; return what names the damage."""
    for number in range(5):
        rows = [json.dumps("ab" * 350)] * 30
        (folder / f"{number}.jsonl").write_text("\n".join([*rows, ""]), "utf-8")
    path = folder / "2.jsonl"
    if kind == "gz":
        data = gzip.compress(path.read_bytes())[:-9]
        path.unlink()
        Path(f"{path}.gz").write_bytes(data)
        return f"{path}.gz: ends at byte {len(data)}, inside the gzip member that"
    line, problem = {
        "json": ("{broken\n", "not JSON (Expecting property name"),
        "field": ('{"body": "text"}\n', "has no field 'text', only body"),
    }[kind]
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    return f"{path}:31: {problem}"


@pytest.mark.parametrize(("workers", "kind"), [(1, "gz"), (1, "field"), (2, "json")])
def test_damage_is_named_once_and_the_other_units_are_kept(
    tmp_path: Path, kind: str, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    problem = damaged(folder, kind)
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, folder, "--unit-bytes", "20K", "--workers", workers

    assert run(*command) == 1

    notice, error = capsys.readouterr().err.splitlines()
    # A short compressed file is one unit with the file after it.
    others = 3 if kind == "gz" else 4
    assert notice == (
        f"{target}: 1 of {others + 1} units failed; the other {others} are kept"
    )
    assert error.startswith(f"roxxel-prepare: {problem}")
    shards = {path: path.stat().st_ino for path in target.parent.glob("*.rox")}
    assert len(shards) == others
    assert run(*command) == 1
    assert run(*command, "--skip-bad") == 0
    assert all(path.stat().st_ino == inode for path, inode in shards.items())
    assert run("clean", target) == 0
    at_once = tmp_path / "at_once" / "c_*.rox"
    assert run(command[0], at_once, *command[2:], "--skip-bad") == 0
    assert content(target.parent) == content(at_once.parent)


def test_a_preparation_that_skips_damage_is_not_continued_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged(tmp_path, "json")
    part = "write", tmp_path / "c_*.rox", tmp_path / "*.jsonl", "--part", "1/9"
    options = "--unit-bytes", "20K"

    assert run(*part, *options) == 0
    assert run(*part, *options, "--skip-bad") == 0
    assert run(*part, *options) == 1
    assert "(skip_bad is yes in the corpus, none given)" in capsys.readouterr().err


@pytest.mark.parametrize("meeting", [0, 20, 40])
def test_twins_of_one_unit_do_no_harm_wherever_they_meet(
    tmp_path: Path, meeting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a process is at one document of a unit, another writes the whole unit."""
    inputs = lines(tmp_path / "a.jsonl", 40)
    options = inputs, "--max-shard-bytes", 20_000, "--separator", 0
    assert run("write", tmp_path / "one" / "c_*.rox", *options) == 0
    expected = content(tmp_path / "one")
    assert len(expected) > 3
    target = tmp_path / "twins" / "c_*.rox"
    command = "write", target, *options, "--part"
    assert run(*command, "1/2") == 0  # Makes the plan; the only unit is of part 0.

    meetings: list[int] = []

    def met(*arguments: Any, **named: Any) -> Iterator[object]:
        found = [*documents_in(*arguments, **named)]
        yield from found[:meeting]
        monkeypatch.setattr(documents, "documents_in", documents_in)
        meetings.append(run(*command, "0/1"))
        yield from found[meeting:]

    monkeypatch.setattr(documents, "documents_in", met)
    assert run(*command, "0/1") == 0
    assert meetings == [0]
    assert run("write", target, "--commit") == 0

    assert content(target.parent) == expected


_PEAK = """
import resource, subprocess, sys

subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_mib(*arguments: object) -> float:
    """Run a command; return the greatest memory of its largest process, in MiB."""
    command = [sys.executable, "-c", _PEAK, *COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout) / (1 << 10 if sys.platform == "linux" else 1 << 20)


@pytest.mark.parametrize("workers", [2])
def test_memory_of_a_worker_does_not_grow_with_its_unit(
    tmp_path: Path, workers: int
) -> None:
    row = json.dumps({"text": "ab" * 500, "other": list(range(100))}) + "\n"
    peaks: dict[int, float] = {}
    for mib in (4, 64):
        path = tmp_path / f"{mib}.jsonl"
        path.write_text(row * ((mib << 20) // len(row)), encoding="utf-8")
        target = tmp_path / f"{mib}" / "c_*.rox"
        options = "--unit-bytes", mib << 19, "--workers", workers
        peaks[mib] = peak_mib("write", target, path, *options)

    assert peaks[64] < peaks[4] + 16
    assert peaks[64] < 120


def test_a_document_larger_than_a_shard_needs_the_memory_of_two_copies(
    tmp_path: Path,
) -> None:
    """A file of 40 MB with one document of 20 million tokens."""
    tokens = np.arange(20_000_000, dtype=np.uint16)
    np.save(tmp_path / "large.npy", tokens)
    np.save(tmp_path / "small.npy", tokens[:5])
    peaks = {
        name: peak_mib(
            *("write", tmp_path / name / "c_*.rox", tmp_path / f"{name}.npy"),
            *("--max-shard-bytes", 1 << 20, "--separator", 0),
        )
        for name in ("small", "large")
    }

    with Roxxel(tmp_path / "large" / "c_*.rox") as corpus:
        assert corpus.num_documents == 1
        assert np.array_equal(corpus.documents[0], tokens)
        assert len(corpus.paths) == 1
    two_copies = 2 * tokens.nbytes / (1 << 20)
    assert peaks["large"] < peaks["small"] + two_copies + 8  # what else a write holds


def test_a_part_inside_a_long_line_needs_no_memory_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = ["short", "x" * 50_000_000, "the end"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    target = tmp_path / "c_*.rox"
    options = "--unit-bytes", 5_000_000

    inside = peak_mib("write", target, path, *options, "--part", "2/11")
    nothing = peak_mib("write", target, path, *options, "--dry-run")
    assert run("write", target, path, *options) == 0

    assert inside < nothing + 20
    with Roxxel(target) as corpus:
        assert [len(each) for each in corpus.documents] == [5, 50_000_000, 7]


def test_units_that_all_fail_alike_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(f"[{number}, 300]\n" for number in range(400))
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")
    options = "--dtype", "uint8", "--unit-bytes", 100

    assert run("write", tmp_path / "c_*.rox", path, *options) == 1

    first, second = capsys.readouterr().err.splitlines()
    assert re.search(r": 8 of [0-9]+ units failed and stopped the others", first)
    assert f"{path}, part [0:" in second
    assert "value 300 is outside" in second


def test_a_ray_that_does_not_start_here_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("The raylet died,\nsee its log.")

    ray = SimpleNamespace(is_initialized=lambda: False, init=fail)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = lines(tmp_path / "a.jsonl", 3)

    assert run("write", tmp_path / "c_*.rox", path, "--ray", "local") == 1

    (error,) = capsys.readouterr().err.splitlines()
    assert "--ray: Ray does not start on this machine" in error
    assert "The raylet died, see its log" in error
    assert "--workers" in error
    assert "the address" not in error  # none was given


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_an_error_of_a_library_is_one_sentence(
    tmp_path: Path,
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise kind("what failed")

    monkeypatch.setattr("roxxel_prepare._inputs.documents._documents_of", failing)
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")

    assert run("write", tmp_path / "c_*.rox", tmp_path / "a.txt") == 1

    error = capsys.readouterr().err
    assert ("memory" if kind is MemoryError else "what failed") in error
    assert error.count("\n") == 1


def test_a_command_killed_after_its_commit_adds_nothing_after_a_compaction(
    tmp_path: Path,
) -> None:
    one, two = (
        lines(tmp_path / name, 9, seed, longest=5)
        for seed, name in enumerate(("a.jsonl", "b.jsonl"))
    )
    corpus = Roxxel(tmp_path / "c_*.rox")
    options = ["--separator", "0", "--exist", "append", "--unit-bytes", "1"]
    command = ["write", corpus.filepath, one, two, *options]
    assert run("write", corpus.filepath, one, *options) == 0
    with (
        mock.patch.object(Place, "discard", side_effect=Killed),
        pytest.raises(Killed),
    ):
        run(*command)
    tokens = corpus.tokens[:].tolist()

    assert Roxxel(corpus.filepath).compact().num_merged == 9
    assert run(*command) == 0

    assert Roxxel(corpus.filepath).tokens[:].tolist() == tokens
    assert Roxxel(corpus.filepath).compact().num_shards == 1


@pytest.fixture
def replacing(tmp_path: Path) -> tuple[Roxxel, list[object]]:
    """A corpus of two writes, and a command whose units of a replacement are done."""
    corpus = Roxxel(tmp_path / "c_*.rox")
    for token in (1, 2):
        corpus.write([[token]], dtype="uint8", exist="append")
    path = lines(tmp_path / "a.jsonl", 9, longest=5)
    options = ["--separator", "0", "--unit-bytes", "1", "--exist", "replace"]
    command: list[object] = ["write", corpus.filepath, path, *options]
    assert run(*command, "--part", "0/1") == 0
    return corpus, command


def refuse(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("commits", [False, True])
def test_a_compaction_does_not_stop_the_commit_of_a_replacement(
    replacing: tuple[Roxxel, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    commits: bool,
) -> None:
    corpus, command = replacing
    monkeypatch.setattr("roxxel_prepare._run.preparation.UnitWriter.write_unit", refuse)

    assert corpus.compact().num_merged == 2
    assert run(*(("write", corpus.filepath, "--commit") if commits else command)) == 0

    assert Roxxel(corpus.filepath).num_documents == 9
    assert corpus.leftovers() == []


@pytest.mark.parametrize("commits", [False, True])
def test_a_replacement_after_another_append_goes_on_when_it_is_repeated(
    replacing: tuple[Roxxel, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    commits: bool,
) -> None:
    corpus, command = replacing
    monkeypatch.setattr("roxxel_prepare._run.preparation.UnitWriter.write_unit", refuse)
    corpus.write([[3]], dtype="uint8", exist="append")
    repeated = ("write", corpus.filepath, "--commit") if commits else command

    assert run(*repeated) == 1
    assert "repeat the command" in capsys.readouterr().err
    assert Roxxel(corpus.filepath).tokens[:].tolist() == [1, 2, 3]
    assert run(*repeated) == 0

    assert Roxxel(corpus.filepath).num_documents == 9
    assert corpus.leftovers() == []


def test_the_same_command_may_commit_while_this_one_is_about_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    command = ["write", corpus.filepath, lines(tmp_path / "a.jsonl", 9)]
    command += ["--separator", "0", "--unit-bytes", "2000"]
    commit = preparation.commit_plan

    def commit_second(*arguments: Any) -> WriteSummary:
        monkeypatch.undo()
        assert run("write", corpus.filepath, "--commit") == 0
        return commit(*arguments)

    monkeypatch.setattr("roxxel_prepare._run.preparation.commit_plan", commit_second)

    assert run(*command) == 0

    assert corpus.num_documents == 9
