"""Damaged, half-written and foreign checkpoints are found before they are used."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointError,
    CheckpointUnreadableError,
    _integrity,
)
from roxxel_ckpt._arrays import orbax
from roxxel_ckpt._place import description
from roxxel_ckpt.cli import main

from .helpers import (
    another,
    checkpointer,
    content,
    flip,
    largest_file,
    make,
    names,
    save_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


WEIGHTS = "state/model/weights/c/0/0"


def test_a_hundred_random_flips_are_all_found(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1)
        files = sorted(path for path in (tmp_path / "1").rglob("*") if path.is_file())
        rng = random.Random(0)
        reading = checkpointer(tmp_path, seed=1)
        for _ in range(100):
            path = rng.choice(files)
            byte, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
            flip(path, byte, bit)
            with pytest.raises(CheckpointDamagedError):
                reading.restore()
            flip(path, byte, bit)

        assert reading.restore() == 1


def test_a_damaged_newest_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make(seed=0)
    with Checkpointer(tmp_path, model, optimizer) as saving:
        save_all(saving, 10, 20)
    path = largest_file(tmp_path / "20")
    flip(path)
    fresh, fresh_optimizer = make(seed=1)

    reading = Checkpointer(tmp_path, fresh, fresh_optimizer)

    assert reading.peek() == (10, None)
    assert reading.restore() == 10
    assert content(fresh, fresh_optimizer) == content(model, optimizer)
    (record,) = caplog.records  # one for both calls
    name = path.relative_to(tmp_path / "20")
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"{tmp_path}/20: cannot be used because {name} is damaged between its bytes 0 "
        f"and {path.stat().st_size}; trying an older checkpoint"
    )
    assert reading.restore() == 10
    assert caplog.messages == [record.getMessage()] * 2


def test_after_a_fall_back_the_run_saves_the_damaged_step_again(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
    flip(largest_file(tmp_path / "20"))
    with checkpointer(tmp_path) as saving:
        saving.restore()
        save_all(saving, 20)

        assert saving.restore() == 20
    assert (tmp_path / "20.damaged").is_dir()


@pytest.mark.parametrize(
    "name",
    ["checkpoint.json", "digests/0.json", "state/_METADATA", WEIGHTS],
)
def test_a_missing_or_cut_file_is_found(tmp_path: Path, name: str) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20, 30)
    path = tmp_path / "30" / name
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "20" / name).unlink()

    assert checkpointer(tmp_path).restore() == 10


def test_the_step_asked_for_is_refused_when_damaged(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
    (tmp_path / "20" / WEIGHTS).unlink()

    with pytest.raises(CheckpointDamagedError, match=r"weights/c/0/0 is missing; r"):
        checkpointer(tmp_path).restore(20)


@pytest.mark.parametrize("call", ["restore", "peek"])
def test_when_nothing_is_sound_restore_does_not_start_anew(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    flip(largest_file(tmp_path / "10"))

    with pytest.raises(CheckpointDamagedError, match="none of its 1 steps can be used"):
        getattr(checkpointer(tmp_path), call)()
    assert "cannot be used because state/model/weights/c/0/0 is damaged" in caplog.text


class CountingZlib:
    """Notes what is digested."""

    def __init__(self, read: list[bytes]) -> None:
        self._read = read

    def crc32(self, data: bytes) -> int:
        """Return the CRC-32, and note the data."""
        self._read.append(data)
        return zlib.crc32(data)


def test_a_restore_after_a_peek_reads_each_file_for_its_digest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    read: list[bytes] = []
    monkeypatch.setattr(_integrity, "zlib", CountingZlib(read))
    reading = checkpointer(tmp_path)

    assert reading.peek() == (10, None)
    once = read.count(largest_file(tmp_path).read_bytes())
    assert reading.peek() == (10, None)
    assert reading.restore() == 10
    assert once == 1
    assert read.count(largest_file(tmp_path).read_bytes()) == 1
    # The next restore verifies the files again.
    assert reading.restore() == 10
    assert read.count(largest_file(tmp_path).read_bytes()) == 2


def test_files_that_are_not_read_are_not_verified(tmp_path: Path) -> None:
    model, optimizer = make(seed=0)
    with Checkpointer(tmp_path, model, optimizer) as saving:
        save_all(saving, 10, 20)
    flip(largest_file(tmp_path / "20" / "state" / "optimizer"))
    fresh, fresh_optimizer = make(seed=1)

    assert Checkpointer(tmp_path, fresh).restore() == 20
    assert content(fresh) == content(model)
    assert Checkpointer(tmp_path, fresh, fresh_optimizer).restore() == 10


def test_digests_of_another_commit_are_damage(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    shutil.copy(tmp_path / "10" / "digests" / "0.json", tmp_path)
    with checkpointer(tmp_path, seed=1) as saving:
        save_all(saving, 30)
    shutil.copy(tmp_path / "0.json", tmp_path / "30" / "digests")

    with pytest.raises(CheckpointDamagedError, match=r"0\.json is from another save"):
        checkpointer(tmp_path).restore(30)


def flip_and_hide(path: Path) -> None:
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_another(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy2(path, other)
    flip_and_hide(other)
    other.replace(path)


@pytest.mark.parametrize("harm", [flip, flip_and_hide, replace_by_another, os.unlink])
def test_what_is_damaged_between_peek_and_restore_is_found(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
        assert saving.peek() == (20, None)
        harm(largest_file(tmp_path / "20" / "state"))

        assert saving.restore() == 10


def test_a_foreign_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()

    with pytest.raises(CheckpointDamagedError, match="none of its 1 steps can be used"):
        checkpointer(tmp_path).restore()


def refuse_to_open(patch: pytest.MonkeyPatch, path: Path, error: Exception) -> None:
    """Let every way to open a file raise an error for one path."""
    for module in (io, os):
        opened = module.open

        def failing(
            given: Any, *args: Any, opened: Any = opened, **options: Any
        ) -> Any:
            if str(given) == str(path):
                raise error
            return opened(given, *args, **options)

        patch.setattr(module, "open", failing)


def test_after_a_read_that_failed_the_files_are_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a disk that fails")

    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    reading = checkpointer(tmp_path, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(orbax, "read_arrays", fail)
        with pytest.raises(CheckpointError, match="a disk that fails"):
            reading.restore()
    error = OSError(errno.EIO, "Input/output error")
    refuse_to_open(monkeypatch, tmp_path / "10" / WEIGHTS, error)

    with pytest.raises(CheckpointError, match="Input/output error"):
        reading.restore()


@pytest.mark.parametrize("name", ["checkpoint.json", "digests/0.json", WEIGHTS])
@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied", "a file"),
        OSError(errno.EIO, "Input/output error", "a file"),
        OSError(errno.ESTALE, "Stale file handle", "a file"),
        MemoryError("no memory"),
    ],
    ids=["EACCES", "EIO", "ESTALE", "memory"],
)
def test_a_step_that_cannot_be_read_is_no_damage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    error: Exception,
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
    reading = checkpointer(tmp_path, seed=1)
    with monkeypatch.context() as patch:
        refuse_to_open(patch, tmp_path / "20" / name, error)
        for use in (reading.peek, reading.restore):
            with pytest.raises(
                CheckpointUnreadableError, match=str(error.args[-1])
            ) as caught:
                use()
            assert str(tmp_path / "20") in str(caught.value)

    assert not caplog.records
    assert reading.steps() == [10, 20]
    assert reading.restore() == 20


@pytest.mark.parametrize("name", ["state", "state/_METADATA", WEIGHTS])
def test_a_look_that_fails_at_any_moment_of_a_restore_names_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 20)
    reading = checkpointer(tmp_path, seed=1)
    stat, watched = os.stat, str(tmp_path / "20" / name)
    looks = fails_at = 0

    def refuse(path: Any, **options: Any) -> os.stat_result:
        nonlocal looks
        looks += str(path) == watched
        if str(path) == watched and looks == fails_at:
            raise OSError(errno.EIO, "Input/output error", watched)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    while looks >= fails_at:
        looks, fails_at = 0, fails_at + 1
        try:
            assert reading.restore() == 20
        except CheckpointError as error:
            assert "Input/output error" in str(error)  # noqa: PT017 - some may pass
    assert fails_at > 1


def test_a_step_is_saved_beside_one_that_cannot_be_read_and_none_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "10" / "checkpoint.json"
    with checkpointer(tmp_path, max_to_keep=2, keep_best=0) as saving:
        save_all(saving, 5, 10)
        error = OSError(errno.EIO, "Input/output error", str(path))
        refuse_to_open(monkeypatch, path, error)
        save_all(saving, 20)

    assert saving.steps() == [5, 10, 20]
    assert str(tmp_path / "10") in caplog.text
    assert "no old checkpoint was deleted" in caplog.text


@pytest.mark.parametrize("name", ["checkpoint.json", "digests/0.json"])
def test_json_that_nests_too_deep_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    (tmp_path / "2" / name).write_text("[" * 100_000)

    assert main(["ls", str(tmp_path)]) == 0
    assert main(["verify", f"{tmp_path}@2"]) == 3
    assert f"{name} is damaged" in capsys.readouterr().out
    assert checkpointer(tmp_path).restore() == 1


def test_a_description_that_would_fill_the_memory_is_damage(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    commit = tmp_path / "2" / "checkpoint.json"
    body = {**json.loads(commit.read_text())["body"], "more": [[]] * 1_300_000}
    commit.write_text(json.dumps({"body": body, "crc32": description.crc_of(body)}))

    with pytest.raises(CheckpointDamagedError, match=r"checkpoint\.json"):
        checkpointer(tmp_path).metrics(2)
    assert checkpointer(tmp_path).restore() == 1


@pytest.mark.parametrize(
    "values",
    [{"step": "2"}, {"step": -1}, {"saved_at": "x"}, {"versions": [3]}, {"extra": 5}],
)
def test_a_description_with_wrong_values_is_damage(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    commit = tmp_path / "2" / "checkpoint.json"
    body = json.loads(commit.read_text())["body"]
    commit.write_text(description.sealed({**body, **values}))

    assert main(["ls", str(tmp_path)]) == 0
    assert main(["ls", f"{tmp_path}@2"]) == 1
    assert checkpointer(tmp_path).restore() == 1


def test_a_checkpoint_of_a_later_format_is_not_guessed_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    path = tmp_path / "10" / "checkpoint.json"
    body = {**json.loads(path.read_text())["body"], "format": 99}
    path.write_text(description.sealed(body))

    with pytest.raises(CheckpointUnreadableError, match=r"format 99 .* up to 2"):
        checkpointer(tmp_path).restore()
    assert not caplog.records


def test_half_written_steps_are_never_seen_and_cleaned_up(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    leftovers = [
        "20.1-1-0123456789abcdef",
        "5.1-2-0123456789abcdef",
        "10.roxxel-replaced",
    ]
    for name in leftovers:
        shutil.copytree(tmp_path / "10", tmp_path / name)

    fresh = another(tmp_path)
    assert fresh.steps() == [10]
    assert fresh.peek() == (10, None)
    assert fresh.restore() == 10
    assert names(tmp_path) == sorted(["10", *leftovers])  # looking changes nothing
    save_all(fresh, 11)
    assert names(tmp_path) == ["10", "11"]


def test_a_new_step_counts_before_the_one_that_it_replaces_is_deleted(
    tmp_path: Path,
) -> None:
    steps = list(range(8))
    with checkpointer(tmp_path, max_to_keep=None) as saving:
        save_all(saving, *steps)
    for step in steps:  # whichever of the two is listed first
        new, old = tmp_path / f"{step}", tmp_path / f"{step}.roxxel-replaced"
        first, second = (new, old) if step % 2 else (old, new)
        if not first.exists():
            new.rename(first)
        shutil.copytree(first, second)
        (old / "checkpoint.json").unlink()

    assert another(tmp_path).steps() == steps


def test_a_step_killed_while_it_was_replaced_is_put_back(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    (tmp_path / "10").rename(tmp_path / "10.roxxel-replaced")

    assert checkpointer(tmp_path).restore() == 10
