from __future__ import annotations

import errno
import io
import json
import os
import resource
import sys
import threading
import zlib
from typing import TYPE_CHECKING, cast

import pytest
from roxxel_train import Logger
from roxxel_train.starts import follow

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


def test_rest_of_a_row_cannot_make_it_a_row_of_the_trainer(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"kind": "note", "step": 1}, lambda: {"kind": "start"})
        with pytest.raises(ValueError, match=r"'start'.*another kind"):
            log.flush()

    assert not rows(tmp_path)


def test_row_that_json_cannot_hold_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": object()})

        with pytest.raises(TypeError, match="not JSON serializable"):
            log.flush()


def test_line_that_is_no_text_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with Logger(tmp_path, terminal=False) as log:
        with pytest.raises(TypeError):
            log.info(cast("str", 5))
        log.info("goes on")

    assert (tmp_path / "system.log").read_text().endswith(" INFO goes on\n")


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


def test_system_log_only_grows(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with Logger(tmp_path, terminal=False) as log:
            log.info(word)

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


def test_rows_that_do_not_fit_are_kept_and_written_once_there_is_room(
    tmp_path: Path,
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 1})
        log.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (32, limit[1]))
        try:
            for step in (2, 3, 4):
                log.metrics({"step": step})
            past = log.position()
            assert past is not None
            # Row 2 was written after the last flush, and is whole.
            assert [json.loads(line)["step"] for line in past.unwritten] == [3, 4]
            assert (past.after, past.at) == (zlib.crc32(b'{"step": 2}\n'), 24)
            assert str(tmp_path / "metrics.jsonl") in str(log.failure)
            with pytest.raises(OSError, match="File too large"):
                log.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (tmp_path / "metrics.jsonl").stat().st_size == 32  # half a row is left

    for _ in range(2):  # the second start is killed, and comes again
        with Logger(tmp_path, terminal=False) as log:
            log.start({"step": 4}, past)
    lines = follow(tmp_path / "metrics.jsonl").lines(tmp_path / "metrics.jsonl")
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_rows_since_the_last_flush_are_kept_if_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Logger(tmp_path, terminal=False) as log:
        log.metrics({"step": 1})
        assert log.position() == (zlib.crc32(b'{"step": 1}\n'), 12, ())
        log.metrics({"step": 2})
        monkeypatch.setattr(os, "fsync", fail)

        assert log.position() == (
            zlib.crc32(b'{"step": 1}\n'),
            12,
            ['{"step": 2}\n'],
        )
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


@pytest.mark.parametrize("length", [0, 200_000, 2**21])
def test_log_of_a_killed_process_goes_on_with_a_new_line(
    tmp_path: Path, length: int
) -> None:
    torn = '{"step": 2, "text": "' + length * "x"
    (tmp_path / "system.log").write_text("2026 INFO half a sen")
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{torn}')
    with Logger(tmp_path, terminal=False) as log:
        log.info("it continues")
        log.metrics({"step": 2})

    first, last = (tmp_path / "system.log").read_text().splitlines()
    assert first == "2026 INFO half a sen"
    assert last.endswith("INFO it continues")
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == f'{{"step": 1}}\n{torn}\n{{"step": 2}}\n'


@pytest.mark.parametrize("kind", ["start", "end"])
def test_a_program_writes_no_row_about_a_start(tmp_path: Path, kind: str) -> None:
    with Logger(tmp_path, terminal=False) as log:
        with pytest.raises(ValueError, match=f"'{kind}'.*another kind"):
            log.metrics({"kind": kind, "step": 900})
        log.flush()

    assert not rows(tmp_path)


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
