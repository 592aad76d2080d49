from __future__ import annotations

import errno
import io
import json
import os
import resource
import sys
import threading
import zlib
from typing import TYPE_CHECKING

import pytest
from roxxel_train import Logger

if TYPE_CHECKING:
    from pathlib import Path


def rows(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_logger_writes_text_and_rows_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Logger(tmp_path / "deep" / "log", terminal=False) as log:
        log.info("hello")
        log.metrics({"step": 1, "loss": 2.5, "bad": float("nan")})

    folder = tmp_path / "deep" / "log"
    assert rows(folder) == [{"step": 1, "loss": 2.5, "bad": "nan"}]
    assert (folder / "system.log").read_text().endswith(" INFO hello\n")
    assert set(threading.enumerate()) <= before


def test_exception_is_in_the_log_before_it_goes_on(tmp_path: Path) -> None:
    def crash() -> None:
        with Logger(tmp_path, terminal=False) as log:
            log.metrics({"step": 1})
            raise RuntimeError("flood")

    with pytest.raises(RuntimeError, match="flood"):
        crash()

    text = (tmp_path / "system.log").read_text()
    assert "Traceback" in text
    assert "RuntimeError: flood" in text
    assert rows(tmp_path) == [{"step": 1}]


def test_flush_puts_everything_on_the_disk(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        for step in range(500):
            log.metrics({"step": step})
        log.flush()

        assert len(rows(tmp_path)) == 500


def test_rest_of_a_row_is_computed_once_and_not_by_the_caller(tmp_path: Path) -> None:
    by: list[threading.Thread] = []
    sunk: list[dict[str, object]] = []

    def rest() -> dict[str, object]:
        by.append(threading.current_thread())
        return {"loss": 2.5}

    with Logger(tmp_path, [sunk.append], terminal=False) as log:
        log.metrics({"step": 1}, rest)

    assert rows(tmp_path) == sunk == [{"step": 1, "loss": 2.5}]
    assert len(by) == 1
    assert by[0] is not threading.current_thread()


def test_row_that_json_cannot_hold_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": object()})

        with pytest.raises(TypeError, match="not JSON serializable"):
            log.flush()


def test_logger_that_is_open_already_may_be_entered_again(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        with log:
            log.metrics({"step": 1})
        log.metrics({"step": 2})

    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_failure_is_raised_until_the_end_and_then_not_again(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": {1, 2}})
        for _ in range(2):
            with pytest.raises(TypeError, match="not JSON serializable"):
                log.flush()


def test_nobody_looking_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, s: str, /) -> int:
            raise BrokenPipeError(s)

    monkeypatch.setattr(sys, "stderr", Gone())
    with Logger(tmp_path) as log:
        log.info("hello")
        log.metrics({"kind": "train", "step": 1, "loss": 2.0})
        log.flush()

    assert [row["step"] for row in rows(tmp_path)] == [1]


def test_logger_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="use it inside `with Logger"):
        Logger(tmp_path).info("lost")


def test_torn_row_is_dropped_at_opening_and_later_ones_by_a_cut(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        for step in (1, 10, 20):
            log.metrics({"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')

    with Logger(tmp_path, terminal=False) as log:
        assert log.cut_metrics(10) == (0, 1)
        log.metrics({"step": 20, "again": True})

    assert [row["step"] for row in rows(tmp_path)] == [1, 10, 20]


def test_cut_leaves_lines_that_are_no_rows(tmp_path: Path) -> None:
    lines = ['{"step": 1}', "", "[]", '{"step": null}', '{"step": 2}', '{"step": 9}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    with Logger(tmp_path, terminal=False) as log:
        assert log.cut_metrics(2) == (0, 1)

    kept = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert kept == lines[:-1]


def test_evaluation_that_is_owed_is_cut_and_comes_again(tmp_path: Path) -> None:
    lines = [f'{{"kind": "{kind}", "step": 4}}' for kind in ("train", "eval")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    with Logger(tmp_path, terminal=False) as log:
        assert log.cut_metrics(4) == (0, 0)
        assert log.cut_metrics(4, evaluated=False) == (0, 1)

    assert [row["kind"] for row in rows(tmp_path)] == ["train"]


def test_system_log_only_grows(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with Logger(tmp_path, terminal=False) as log:
            log.info(word)
            log.cut_metrics(0)

    text = (tmp_path / "system.log").read_text()
    assert "first" in text
    assert "second" in text


def test_logger_without_a_folder_shows_lines_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Logger() as log:
        log.info("hello")
        log.progress(5, 90)
        log.metrics({"kind": "train", "step": 5, "loss": 2.0, "tokens_per_s": 1234.5})
        log.metrics({"kind": "eval", "step": 5, "text": "Once upon a time"})

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "hello",
        "step 5/90  loss 2.0000  tok/s 1,234",
        "step 5/90  text Once upon a time",
    ]


def test_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 1})

        with pytest.raises(OSError, match=r"No space left on device.*metrics.jsonl"):
            log.flush()
        log.info("still said")

    assert "still said" in (tmp_path / "system.log").read_text()


def test_a_branch_that_is_brought_back_has_its_own_rows_alone(tmp_path: Path) -> None:
    def train(log: Logger, branch: str, steps: range) -> tuple[int, int]:
        for step in steps:
            log.metrics({"step": step, "branch": branch})
        last = log.last_row()
        assert last is not None
        return last

    def held() -> list[str]:
        return [f"{row['branch']}{row['step']}" for row in rows(tmp_path)]

    with Logger(tmp_path, terminal=False) as log:
        a5 = train(log, "a", range(1, 6))
        log.cut_metrics(3, keep_to=[a5[1]])
        b4 = train(log, "b", range(4, 5))
        log.cut_metrics(1, keep_to=[b4[1]])
        c6 = train(log, "c", range(2, 7))

        known = {a5: "a1 a2 a3 a4 a5", b4: "a1 a2 a3 b4", c6: "a1 c2 c3 c4 c5 c6"}
        for last in (a5, c6, b4, a5, a5):
            log.cut_metrics(last[0], keep_to=None)
            log.bring_back(last)
            log.flush()
            assert held() == known[last].split()

    aside = (tmp_path / "metrics.aside.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in aside]
    names = [f"{row['branch']}{row['step']}" for row in kept if "step" in row]
    assert sorted(names) == ["a2", "a3", "a4", "a5", "b4", "c2", "c3", "c4", "c5", "c6"]


def test_rows_that_lead_to_no_checkpoint_are_not_kept(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        for step in range(1, 4):
            log.metrics({"step": step})
        saved = log.last_row()
        assert saved is not None
        log.metrics({"step": 4})
        assert log.cut_metrics(1, keep_to=[saved[1]]) == (2, 1)
        log.metrics({"step": 2, "mine": 1})
        assert log.cut_metrics(1, keep_to=[saved[1]]) == (0, 1)

    aside = (tmp_path / "metrics.aside.jsonl").read_text()
    assert "mine" not in aside
    assert [json.loads(line).get("step") for line in aside.splitlines()] == [None, 2, 3]


def test_rows_are_kept_again_after_a_kill_while_they_were_kept(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        for step in range(1, 5):
            log.metrics({"step": step})
        last = log.last_row()
        log.flush()
        before = (tmp_path / "metrics.jsonl").read_bytes()
        log.cut_metrics(1, keep_to=None)
    aside = tmp_path / "metrics.aside.jsonl"
    aside.write_bytes(aside.read_bytes()[:-20])
    (tmp_path / "metrics.jsonl").write_bytes(before)

    with Logger(tmp_path, terminal=False) as log:
        log.cut_metrics(1, keep_to=None)
        assert last is not None
        assert log.bring_back(last) == (0, 3)

    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_rows_of_another_branch_below_a_later_step_are_not_left(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 2})
        last = log.last_row()
        log.metrics({"step": 2, "mine": 1})
        log.metrics({"step": 3})
        assert last is not None

        assert log.bring_back(last) == (1, 0)
        assert log.bring_back((9, 7)) == (0, 0)
        log.flush()
        assert [row["step"] for row in rows(tmp_path)] == [2, 2]


def test_rows_that_do_not_fit_are_kept_and_written_once_there_is_room(
    tmp_path: Path,
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 1})
        log.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
        try:
            for step in (2, 3):
                log.metrics({"step": step})
            kept = log.unwritten_rows()
            assert [json.loads(line)["step"] for line in kept] == [2, 3]
            assert str(tmp_path / "metrics.jsonl") in str(log.failure)
            last = log.last_row()
            assert last is not None
            assert last[0] == 3
            with pytest.raises(OSError, match="File too large"):
                log.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (tmp_path / "metrics.jsonl").stat().st_size == 20  # half a row is left

    for added in (2, 0):
        with Logger(tmp_path, terminal=False) as log:
            assert log.add_rows(kept) == added
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


def test_rows_since_the_last_flush_are_kept_if_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 1})
        assert log.unwritten_rows() == []
        log.metrics({"step": 2})
        monkeypatch.setattr(os, "fsync", fail)

        assert log.unwritten_rows() == ['{"step": 2}\n']
        with pytest.raises(OSError, match=r"Input/output error.*metrics.jsonl"):
            log.flush()


def test_full_disk_does_not_hide_the_error_that_passes(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")

    def crash() -> None:
        with Logger(tmp_path, terminal=False) as log:
            log.metrics({"step": 1})
            raise RuntimeError("flood")

    with pytest.raises(RuntimeError, match="flood") as caught:
        crash()
    assert "the log could not be written: [Errno 28]" in caught.value.__notes__[0]


def test_second_logger_in_a_folder_is_refused_while_the_first_is_open(
    tmp_path: Path,
) -> None:
    first, second = (Logger(tmp_path, terminal=False) for _ in range(2))
    with first:
        with pytest.raises(BlockingIOError, match="another Logger is open"):
            second.__enter__()
        first.metrics({"step": 1})
        with pytest.raises(RuntimeError, match="not open"):
            second.info("lost")
    with second:
        second.metrics({"step": 2})

    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_log_of_a_killed_process_goes_on_with_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "system.log").write_text("2026 INFO half a sen")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 2})

    first, *rest = (tmp_path / "system.log").read_text().splitlines()
    assert first == "2026 INFO half a sen"
    assert rest[0].endswith("WARNING dropped an incomplete last row of metrics.jsonl")
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_other_processes_append_a_line_once_for_a_first_that_is_stopped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run" / "system.log"
    others = [Logger(tmp_path / "run"), Logger(tmp_path / "run")]
    others[0].append_for_first("another disk: nothing to append to")
    with Logger(tmp_path / "run", terminal=False) as first:
        first.info("step 1")
        first.flush()
        with path.open("a") as torn:
            torn.write("half a li")
        for other in others:
            other.append_for_first("process 0 failed: no answer")
        first.info("it continues")

    begun, half, appended, after = path.read_text().splitlines()
    assert begun.endswith("INFO step 1")
    assert half == "half a li"
    assert appended.endswith("WARNING process 0 failed: no answer")
    assert after.endswith("INFO it continues")


def test_half_a_character_is_written_too(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.info("sample: \udcff")
        log.metrics({"step": 1, "text": "\udcff"})

    assert "sample: \\udcff" in (tmp_path / "system.log").read_text()
    assert rows(tmp_path) == [{"step": 1, "text": "\udcff"}]


def test_program_without_standard_error_has_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Logger(tmp_path) as log:
        log.info("hello")

    assert "hello" in (tmp_path / "system.log").read_text()


@pytest.mark.parametrize("kept", ["", '{"step": 1}\n'])
def test_long_row_that_is_torn_is_dropped_whole(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(kept + '{"text": "' + 200_000 * "x")

    with Logger(tmp_path, terminal=False):
        pass

    assert path.read_text() == kept


def test_keys_that_are_the_same_as_text_are_an_error(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"by": {1: 2, "1": 3}})

        with pytest.raises(
            ValueError, match="keys of a row have the same text: \\[1, '1'\\]"
        ):
            log.flush()


def test_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NotADirectoryError, match=r"log_dir=.*file is a file; give a"):
        Logger(tmp_path / "file" / "logs")


def test_a_file_goes_to_the_disk_when_it_has_new_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(file_of(fd)))

    def file_of(descriptor: int) -> str:
        by_inode = {path.stat().st_ino: path.name for path in tmp_path.iterdir()}
        return by_inode[os.fstat(descriptor).st_ino]

    with Logger(tmp_path, terminal=False) as log:
        log.info("a line")
        log.flush()
        log.flush()
        log.metrics({"kind": "train", "step": 1})
        log.flush()

    assert synced == ["system.log", "metrics.jsonl"]


@pytest.mark.parametrize("step", [0, 3, 1500, 2000])
def test_a_long_log_is_cut_where_a_short_one_is(tmp_path: Path, step: int) -> None:
    """The rows to drop may be longer than what is read of the end at first."""
    lines = [
        json.dumps({"kind": "train", "step": number, "text": "x" * 2000}) + "\n"
        for number in range(1, 2001)
    ]
    lines.insert(1800, "damaged\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))

    with Logger(tmp_path, terminal=False) as log:
        lost = log.cut_metrics(step)
        last = log.last_row()

    left = (tmp_path / "metrics.jsonl").read_text()
    kept = step + (step > 1800)
    assert left == "".join(lines[:kept])
    assert lost == (0, len(lines) - kept)
    assert last is not None
    assert last[0] == step


def test_a_torn_row_of_any_length_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + "x" * 2**21)

    with Logger(tmp_path, terminal=False) as log:
        assert log.last_row() == (1, zlib.crc32(b'{"step": 1}\n'))
