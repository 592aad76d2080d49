"""Corpora from many files: the same bytes however units are divided over processes."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError
from roxxel_prepare import write_files
from roxxel_prepare._inputs import documents
from roxxel_prepare._inputs.documents import documents_in
from roxxel_prepare._run.runners import ProcessRunner, Progress
from roxxel_store import roxxel_command

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roxxel_prepare._inputs.input_record import Part


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def texts(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text("x" * number, encoding="utf-8")
    return paths


def lines(folder: Path, name: str, count: int, seed: int = 0) -> Path:
    chosen = random.Random(seed)
    path = folder / name
    rows = [json.dumps({"text": "ab" * chosen.randrange(60)}) for _ in range(count)]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    """Return the visible files of a folder, and check that no plan is left."""
    names = names_in(folder)
    assert not [*folder.glob(".*.plan"), *folder.glob(".*.unit")]
    return {name: (folder / name).read_bytes() for name in names}


def read_all(path: Path) -> list[bytes]:
    with Roxxel(path) as corpus:
        return [each.tobytes() for each in corpus.documents]


def test_any_number_of_workers_gives_the_same_shards(tmp_path: Path) -> None:
    inputs = texts(tmp_path, 5)

    for workers in (1, 2):
        target = tmp_path / f"by_{workers}" / "c_*.rox"
        options = "--workers", workers, "--unit-bytes", 2
        assert run("write", target, *inputs, *options) == 0

    one, two = (content(tmp_path / f"by_{workers}") for workers in (1, 2))
    assert len(one) == 4
    assert one == two
    assert read_all(tmp_path / "by_1") == [b"x" * number for number in range(5)]


_SLOW = """
import os, time
from pathlib import Path
from roxxel_prepare._run import preparation

def stall(self, number):
    Path(os.environ["PIDS"], str(os.getpid())).touch()
    time.sleep(3600)

preparation.UnitWriter.write_unit = stall
"""


_WARNING = """
import warnings
from roxxel_prepare._run import preparation

write_unit = preparation.UnitWriter.write_unit

def warn(self, number):
    warnings.warn("of a library")
    return write_unit(self, number)

preparation.UnitWriter.write_unit = warn
"""


def test_a_warning_in_a_worker_of_a_command_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each interpreter imports this module first, that of a worker too.
    (tmp_path / "sitecustomize.py").write_text(_WARNING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    inputs, options = texts(tmp_path, 3), ("--workers", 2, "--unit-bytes", 1)

    assert run("write", tmp_path / "c_*.rox", *inputs, *options) == 0

    said = capfd.readouterr().err.splitlines()
    assert {line for line in said if "library" in line} == {"warning: of a library"}
    assert not [line for line in said if ".py" in line]


def test_workers_end_with_a_killed_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    # Each interpreter imports this module first, that of a worker too.
    (tmp_path / "sitecustomize.py").write_text(_SLOW, encoding="utf-8")
    environment = {**os.environ, "PIDS": str(pids), "PYTHONPATH": str(tmp_path)}
    inputs = map(str, texts(tmp_path, 5))
    target = str(tmp_path / "out" / "c_*.rox")
    options = "--workers", "2", "--unit-bytes", "2"
    words = ["-m", "roxxel_prepare", "write", target, *inputs, *options]

    with subprocess.Popen([sys.executable, *words], env=environment) as process:
        wait_for(lambda: len(list(pids.iterdir())) == 2)
        process.kill()

    wait_for(lambda: not any(is_alive(int(path.name)) for path in pids.iterdir()))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended may wait for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("max_shard_bytes", [None, 20_000])
def test_parts_in_any_order_give_the_bytes_of_one_process(
    tmp_path: Path, max_shard_bytes: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        lines(folder, f"{number}.jsonl", 400, number)
    (folder / "3.jsonl.gz").write_bytes(gzip.compress(b'"compressed"\n'))
    options: list[object] = ["--unit-bytes", 5000, "--separator", 0]
    if max_shard_bytes:
        options += ["--max-shard-bytes", max_shard_bytes]
    assert run("write", tmp_path / "one" / "c_*.rox", folder, *options) == 0
    target = tmp_path / "parts" / "c_*.rox"
    members = list(range(7)) * 2
    random.Random(1).shuffle(members)

    for number, member in enumerate(members):
        assert run("write", target, folder, *options, "--part", f"{member}/7") == 0
        if number == 3:
            capsys.readouterr()
            assert run("write", target, "--commit") == 1
            assert "units are not done: " in capsys.readouterr().err
    assert run("write", target, "--commit") == 0

    assert content(tmp_path / "parts") == content(tmp_path / "one")
    assert len(content(tmp_path / "one")) > 7
    assert Roxxel(target).leftovers() == []
    assert run("write", target, "--commit") == 0
    assert "already committed" in capsys.readouterr().err
    assert run("write", target, folder, *options, "--part", "6/7") == 0
    assert "--commit" not in capsys.readouterr().out


def test_a_unit_whose_shard_is_gone_or_torn_is_written_again(tmp_path: Path) -> None:
    target = tmp_path / "out" / "c_*.rox"
    options = "--unit-bytes", 1, "--part", "0/1"
    command = "write", target, *texts(tmp_path, 4), *options
    assert run(*command) == 0
    before = {path: path.read_bytes() for path in target.parent.glob("*.rox")}
    gone, torn, *_ = before
    gone.unlink()
    torn.write_bytes(before[torn][:-1])

    assert run(*command) == 0

    assert {path: path.read_bytes() for path in before} == before


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.text("ab\n\u00e9", max_size=9), min_size=1, max_size=30),
    unit_bytes=st.integers(1, 40),
    ending=st.sampled_from(["\n", "\r\n"]),
    ends=st.booleans(),
)
def test_a_line_belongs_to_the_part_in_which_it_begins(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[str],
    unit_bytes: int,
    ending: str,
    ends: bool,
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    path = folder / "a.jsonl"
    data = ending.join(json.dumps(row) for row in rows) + ending * ends
    path.write_bytes(data.encode())

    target = folder / "c_*.rox"
    assert run("write", target, path, "--unit-bytes", unit_bytes) == 0

    assert read_all(target) == [row.encode() for row in rows]


def test_lines_of_text_are_divided_too(tmp_path: Path) -> None:
    rows = [b"", b"one", b"", b"two two two", b"3"] * 20
    # The last line begins in the seven bytes that units of equal size would leave.
    (tmp_path / "a.txt").write_bytes(b"\n".join(rows))
    options = "--format", "lines", "--unit-bytes", 8

    assert run("write", tmp_path / "c_*.rox", tmp_path / "a.txt", *options) == 0

    assert read_all(tmp_path / "c_*.rox") == rows


def test_an_error_in_a_part_names_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'"good"\n' * 10 + b"bad\n" + b'"good"\n' * 10)

    assert run("write", tmp_path / "c_*.rox", path, "--unit-bytes", 20) == 1

    error = capsys.readouterr().err
    assert "a.jsonl: line at byte 70: not JSON" in error
    assert "1 of 7 units failed; the other 6 are kept" in error


def test_an_interrupted_preparation_goes_on_with_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 4)
    inputs[2].write_bytes(b"\xff")
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, *inputs, "--unit-bytes", 1
    assert run(*command) == 1
    assert "2.txt: not UTF-8 text" in capsys.readouterr().err

    read: list[str] = []

    def noted(part: Part, *arguments: Any, **options: Any) -> Iterator[object]:
        read.append(part.path)
        return documents_in(part, *arguments, **options)

    monkeypatch.setattr(documents, "documents_in", noted)
    assert run(*command) == 1
    # The first document decided the dtype before; only the unit that failed is read.
    assert read == [str(inputs[2])]
    assert run("clean", target) == 0
    assert "--abandon" in capsys.readouterr().out  # What would go on stays.
    with pytest.raises(ShardError, match="interrupted"):
        _ = Roxxel(target).num_tokens
    status = inputs[2].stat()
    inputs[2].write_text("y", encoding="utf-8")
    os.utime(inputs[2], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(*command) == 1
    error = capsys.readouterr().err
    assert (
        f"{target}: a preparation that is not finished differs from this command "
        f"({inputs[2]} differs in its first or last 4096 bytes); finish it with the "
        "old inputs and arguments, or abandon it with "
        f"`{roxxel_command('format clean --abandon ')}'{target}'`"
    ) in error
    assert run("clean", target, "--abandon") == 0
    assert names_in(target.parent) == []
    assert run(*command) == 0
    assert read_all(target) == [b"", b"x", b"y", b"xxx"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--separator", "5"], "(separator is none in the corpus, 5 given)"),
        (["--exist", "append"], "(exist is keep in the corpus, append given)"),
        (["--unit-bytes", "2"], "(2 units are planned, 3 recorded)"),
        (["--format", "lines"], "(format is none in the corpus, lines given)"),
    ],
)
def test_other_arguments_are_not_mixed_into_an_open_plan(
    tmp_path: Path,
    change: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = texts(tmp_path, 4)
    command = "write", tmp_path / "c_*.rox", *inputs, "--unit-bytes", 1
    assert run(*command, "--part", "0/2") == 0
    capsys.readouterr()

    assert run(*command, *change) == 1

    assert message in capsys.readouterr().err
    assert run(*command[:-2], inputs[0], *command[-2:]) == 1
    assert "(5 inputs are given, 4 recorded)" in capsys.readouterr().err
    assert run(*command) == 0
    assert read_all(tmp_path / "c_*.rox") == [b"", b"x", b"xx", b"xxx"]


def test_as_many_units_of_other_files_are_not_mixed_into_an_open_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 5)
    order = [inputs[size] for size in (2, 1, 3, 4)]
    command = "write", tmp_path / "c_*.rox", *order, "--unit-bytes"
    assert run(*command, 2, "--part", "0/2") == 0  # units of 2, 1 + 3 and 4 bytes

    assert run(*command, 3) == 1  # units of 2 + 1, 3 and 4 bytes

    assert "differs from this command" in capsys.readouterr().err


@pytest.mark.parametrize("exist", ["keep", "append", "replace"])
def test_a_process_killed_after_the_commit_commits_once(
    tmp_path: Path, exist: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = texts(tmp_path, 3)
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, *inputs, "--unit-bytes", 1, "--exist", exist
    if exist != "keep":
        assert run("write", target, inputs[1]) == 0
    before = read_all(target) if exist == "append" else []

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("roxxel_format._write.place.Place.discard", killed)
        assert run(*command) == 130
    assert len(list(target.parent.glob(".*.plan"))) == 1

    assert run(*command) == 0
    assert run("clean", target) == 0
    content(target.parent)

    assert read_all(target) == [*before, b"", b"x", b"xx"]


def test_the_same_command_removes_what_an_interrupted_commit_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "write", tmp_path / "c_*.rox", *texts(tmp_path, 3), "--unit-bytes", 1
    with monkeypatch.context() as context:

        def refuse(path: Path, **_: object) -> None:
            raise OSError(5, "Input/output error", str(path))

        context.setattr(Path, "unlink", refuse)
        assert run(*words) == 0
    assert len(Roxxel(tmp_path / "c_*.rox").leftovers()) > 1

    assert run(*words) == 0

    assert Roxxel(tmp_path / "c_*.rox").leftovers() == []


@pytest.mark.parametrize("ending", [".rox", ".unit"])
def test_a_file_of_a_unit_that_cannot_be_looked_at_is_not_taken_for_absent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ending: str,
) -> None:
    target = tmp_path / "c_*.rox"
    assert run("write", target, *texts(tmp_path, 3), "--part", "0/1") == 0
    capsys.readouterr()
    with monkeypatch.context() as context:
        stat = os.stat

        def refuse(path: Any, **options: Any) -> os.stat_result:
            if str(path).endswith(ending):
                raise OSError(5, "Input/output error", str(path))
            return stat(path, **options)

        context.setattr(os, "stat", refuse)
        assert run("write", target, "--commit") == 1
    said = capsys.readouterr().err
    assert "Input/output error" in said
    assert f"{ending}:" in said

    assert run("write", target, "--commit") == 0


def test_a_unit_may_be_written_twice_at_the_same_time(tmp_path: Path) -> None:
    path = lines(tmp_path, "a.jsonl", 300)
    options = [str(path), "--unit-bytes", "4000", "--separator", "0"]
    assert run("write", tmp_path / "one" / "c_*.rox", *options) == 0
    target = str(tmp_path / "twice" / "c_*.rox")
    command = [sys.executable, "-m", "roxxel_prepare", "write", target, *options]

    members = [subprocess.Popen([*command, "--part", "0/1"]) for _ in range(2)]
    assert [member.wait() for member in members] == [0, 0]
    assert run("write", target, "--commit") == 0

    assert content(tmp_path / "twice") == content(tmp_path / "one")


def test_units_without_documents_are_done(tmp_path: Path) -> None:
    for number in range(4):
        text = "\n" if number % 2 else f'"text {number}"\n'
        (tmp_path / f"{number}.jsonl").write_text(text, encoding="utf-8")
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, tmp_path / "*.jsonl", "--unit-bytes", 1

    for member in (0, 1):
        assert run(*command, "--part", f"{member}/2") == 0
    assert run("write", target, "--commit") == 0

    assert read_all(target) == [b"text 0", b"text 2"]


def test_a_command_is_not_said_to_have_made_what_another_made(tmp_path: Path) -> None:
    target, files = tmp_path / "c_*.rox", [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file, exist in zip(files, ("error", "append"), strict=True):
        file.write_text(f"the text of {file.name}")
        write_files(target, [file], exist=exist)

    for file, version in zip(files, ("version 2 of 2", "version 1 of 2"), strict=True):
        with pytest.raises(FileExistsError, match=f"{version} was made from other in"):
            write_files(target, [file])


def test_the_same_files_can_be_appended_and_replaced(tmp_path: Path) -> None:
    inputs = texts(tmp_path, 3)
    target = tmp_path / "out" / "c_*.rox"
    for exist, count in (("keep", 3), ("append", 6), ("append", 9), ("replace", 3)):
        command = "write", target, *inputs, "--unit-bytes", 1, "--exist", exist
        assert run(*command) == 0
        assert read_all(target) == [b"", b"x", b"xx"] * (count // 3)
    assert Roxxel(target).verify().ok


def test_a_document_larger_than_a_shard_has_one_of_its_own(
    tmp_path: Path,
) -> None:
    rows = ["a" * 30_000, "b", "c" * 70_000]
    inputs = [tmp_path / "0.txt", tmp_path / "1.txt", tmp_path / "2.txt"]
    for path, row in zip(inputs, rows, strict=True):
        path.write_text(row, encoding="utf-8")
    target = tmp_path / "c_*.rox"

    limits = "--max-shard-bytes", 32768, "--unit-bytes", 1
    assert run("write", target, *inputs, *limits) == 0

    assert [each.decode() for each in read_all(target)] == rows
    assert len(list(tmp_path.glob("c_*.rox"))) == len(rows)


@pytest.mark.parametrize("option", [["--workers", "2"], ["--part", "0/2"]])
def test_one_file_is_written_by_one_process(
    tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 2)

    assert run("write", tmp_path / "c.rox", *inputs, *option) == 1

    error = capsys.readouterr().err
    assert "one process writes it, without --workers and --part; use a" in error
    assert not (tmp_path / "c.rox").exists()


def test_a_pipe_is_read_by_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)

    assert run("write", tmp_path / "c_*.rox", pipe, "--part", "0/2") == 1

    assert "only one process can read it; leave --part out" in capsys.readouterr().err


_DIES = """
import os, signal

class Writer:
    def write_unit(self, number):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying_writer.py").write_text(_DIES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    writer: Any = importlib.import_module("dying_writer").Writer()

    outcomes = [*ProcessRunner(2).run(writer, range(2))]

    assert {each.number: str(each.error) for each in outcomes if each.error} == {
        number: f"a worker process ended early in unit {number}, perhaps for lack of "
        "memory; write again with fewer workers, which keeps the finished units"
        for number in range(2)
    }


_UNGUARDED = """
from roxxel_prepare import write_files
print("begins")
write_files("c_*.rox", "a.jsonl", separator=0, unit_bytes=100, workers=2)
"""


@pytest.mark.parametrize("way", ["a file", "standard input"])
def test_a_program_without_a_main_guard_may_have_workers(
    tmp_path: Path, way: str
) -> None:
    lines(tmp_path, "a.jsonl", 30)
    (tmp_path / "program.py").write_text(_UNGUARDED, encoding="utf-8")
    words = {"a file": ["program.py"], "a module": ["-m", "program"]}.get(way, ["-"])

    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        input=_UNGUARDED,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("begins\n", "")
    assert len(read_all(tmp_path / "c_*.rox")) == 30


class _Letters:
    """A tokenizer whose class a test puts into the program."""

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text)]


@pytest.mark.parametrize("place", ["the program", "a function"])
def test_a_tokenizer_that_workers_cannot_load_is_one_sentence(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path, "a.jsonl", 30)
    own = type("Letters", (_Letters,), {"__module__": "__main__"})
    if place == "the program":
        monkeypatch.setattr(sys.modules["__main__"], "Letters", own, raising=False)
    arguments: dict[str, Any] = {"tokenizer": own(), "separator": 0, "unit_bytes": 100}

    with pytest.raises(TypeError, match=r"Letters.*workers=1"):
        write_files(tmp_path / "c_*.rox", path, workers=2, **arguments)

    write_files(tmp_path / "c_*.rox", path, workers=1, **arguments)
    assert len(read_all(tmp_path / "c_*.rox")) == 30


@pytest.mark.parametrize("unit_bytes", [1, 1 << 20])
def test_text_and_ready_made_tokens_do_not_mix_wherever_units_end(
    unit_bytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rows in (("a", '"text"\n'), ("b", "[3]\n")):
        (tmp_path / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    inputs = sorted(tmp_path.glob("*.jsonl"))
    options = "--unit-bytes", unit_bytes

    assert run("write", tmp_path / "c_*.rox", *inputs, *options) == 1

    error = capsys.readouterr().err
    assert "b.jsonl" in error
    assert "write text and ready-made tokens into different corpora" in error


def test_empty_arrays_do_not_decide_the_dtype_wherever_units_end(
    tmp_path: Path,
) -> None:
    for number, values in enumerate(([], np.array([1], np.uint16))):
        np.save(tmp_path / f"{number}.npy", np.array(values))
    inputs = sorted(tmp_path.glob("*.npy"))
    for unit_bytes in (1, 1 << 20):
        target = tmp_path / f"{unit_bytes}_*.rox"
        assert run("write", target, *inputs, "--unit-bytes", unit_bytes) == 0
        assert Roxxel(target).dtype == np.uint16


def test_plan_shows_the_units_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'"x"\n' * 25)
    small = texts(tmp_path, 3)

    inputs = small[0], tmp_path / "a.jsonl", *small[1:]
    assert run("write", "c_*.rox", *inputs, "--unit-bytes", 40, "--dry-run") == 0

    _, *units, last = capsys.readouterr().out.splitlines()
    assert [unit.split(maxsplit=2) for unit in units] == [
        ["0", "0", str(small[0])],
        ["1", "50", f"{tmp_path / 'a.jsonl'} [0:50]"],
        ["2", "50", f"{tmp_path / 'a.jsonl'} [50:100]"],
        ["3", "3", f"{small[1]} and 1 more"],
    ]
    assert last == "4 units, 103 bytes, c_*.rox"
    assert len(list(tmp_path.iterdir())) == 4


def test_folders_and_patterns_mean_their_files_in_natural_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / ".hidden").mkdir()
    for name in ("10.txt", "9.txt", ".no.txt", ".hidden/1.txt", "sub/1.txt"):
        (tmp_path / "in" / name).write_text(name, encoding="utf-8")

    def names(given: Path) -> list[str]:
        target = tmp_path / "c_*.rox"
        assert run("write", target, given, "--exist", "replace") == 0
        return [document.tobytes().decode() for document in Roxxel(target).documents]

    assert names(tmp_path / "in") == ["9.txt", "10.txt", "sub/1.txt"]
    assert names(tmp_path / "in" / "[0-9]*.txt") == ["9.txt", "10.txt"]
    assert run("write", "c_*.rox", tmp_path / "no*.txt", "--dry-run") == 1
    assert "no*.txt: no file matches the pattern" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["7/7", "a/2", "1", "-1/2"])
def test_a_part_is_a_member_of_several(wrong: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run("write", "c_*.rox", "a.txt", "--part", wrong)
    assert caught.value.code == 2


def test_a_terminal_shows_one_line_of_the_whole_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'"good"\n' * 300 + b"bad\n" + b'"end"\n' * 99)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    options = tmp_path / "a.jsonl", "--unit-bytes", 1000, "--separator", 0

    assert run("write", tmp_path / "c_*.rox", *options) == 1

    lines = capsys.readouterr().err.split("\r")
    assert lines[0] == ""
    assert lines[1] == "0 of 2 units, 0 B of 2.7 kB, 0 tokens, 0 documents\x1b[K"
    assert len(lines) == 4
    last = lines[3].partition("\n")[0].removesuffix("\x1b[K")
    assert last.startswith("1 of 2 units, 1 failed, done, 1.35 kB of 2.7 kB, ")
    assert 70 < len(last) < 80


def test_the_line_of_a_terminal_begins_with_what_matters_most() -> None:
    done = Progress(
        num_units=1200,
        num_bytes=60 * 10**9,
        num_done=900,
        num_failed=2,
        done_bytes=45 * 10**9,
        num_documents=123_456_789,
        num_tokens=10**10,
        new_bytes=45 * 10**9,
        new_tokens=10**10,
        duration_s=5000.0,
    )

    assert str(done) == (
        "900 of 1200 units, 2 failed, 28 min left, 45 GB of 60 GB, 2 M tokens/s, "
        "10 G tokens, 123 M documents"
    )


def test_without_a_terminal_a_short_job_shows_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = texts(tmp_path, 3)
    assert run("write", tmp_path / "c_*.rox", *inputs, "--separator", "none") == 0

    assert capsys.readouterr().err == ""


def test_a_second_commit_says_that_the_first_was_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, *texts(tmp_path, 3), "--unit-bytes", 1
    assert run("write", target, "--commit") == 1
    assert "has no preparation to commit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(*command, "--part", "0/1") == 0
    command = roxxel_command(f"prepare write '{target}' --commit")
    assert command in capsys.readouterr().out
    assert run("write", target, "--commit") == 0
    before = content(target.parent)
    capsys.readouterr()

    assert run("write", target, "--commit") == 0

    assert f"{target}: already committed, with 3 tokens" in capsys.readouterr().err
    assert content(target.parent) == before
    Roxxel(tmp_path / "d_*.rox").write([[1]], vocab_size=9)
    assert run("write", tmp_path / "d_*.rox", "--commit") == 1


@pytest.mark.parametrize(("options", "count"), [((), 2), (("--separator", "none"), 0)])
def test_each_part_says_that_nothing_ends_its_documents_and_the_commit_does_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    count: int,
) -> None:
    target = tmp_path / "out" / "c_*.rox"
    command = "write", target, *texts(tmp_path, 3), "--unit-bytes", 1, *options
    for part in ("0/2", "1/2"):
        assert run(*command, "--part", part) == 0
    assert run("write", target, "--commit") == 0

    assert capsys.readouterr().err.count("nothing marks where a document") == count


def test_plan_takes_the_arguments_of_a_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [path] = texts(tmp_path, 1)
    options = "--separator", 0, "--dtype", "uint16", "--workers", 2, "--shuffle", 1
    split = "--split", "held=0.1", "--exist", "append", "--max-shard-bytes", 20_000

    assert run("write", "c_*.rox", path, *options, *split, "--dry-run") == 0
    assert "1 units" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "options",
    [
        ["--document-id", "name"],
        ["--prompt", "question", "--completion", "answer"],
        ["--split", "valid=0.5"],
        ["--bucket-by-length", "8,64"],
    ],
)
def test_a_dry_run_takes_the_inputs_that_the_write_takes(
    options: list[str], tmp_path: Path
) -> None:
    texts(tmp_path, 20)
    write = "write", tmp_path / "c_*.rox", tmp_path, *options

    code = run(*write)
    assert run(*write, "--dry-run") == code


def test_a_small_block_size_is_read_and_verified(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    documents = [[*range(number)] for number in range(90)]

    corpus.write(documents, vocab_size=99, block_size=64)

    assert corpus.block_size == 64
    assert [each.tolist() for each in corpus.with_check("blocks").documents] == (
        documents
    )
    assert corpus.verify().ok
    with pytest.raises(ValueError, match=r"block_size must be a power of two in \[64"):
        corpus.write(documents, vocab_size=99, block_size=32, exist="replace")
