"""Saves run in the background, and their errors are raised later."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from flax import nnx
from roxxel_ckpt import (
    Checkpointer,
    CheckpointTimeoutError,
    CheckpointWriteError,
)
from roxxel_ckpt._arrays import orbax
from roxxel_ckpt._place.disk import LocalFolder
from roxxel_ckpt.errors import brief

from .helpers import checkpointer, content, make, names, save_all, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def no_space(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keep background writes waiting until the event is set."""
    opened, start = threading.Event(), orbax.start_writing

    def start_behind_gate(*arguments: Any) -> Callable[[], None]:
        wait = start(*arguments)

        def wait_at_gate() -> None:
            assert opened.wait(600)
            wait()

        return wait_at_gate

    monkeypatch.setattr(orbax, "start_writing", start_behind_gate)
    yield opened
    opened.set()


def test_save_returns_before_the_checkpoint_is_there(
    tmp_path: Path, gate: threading.Event
) -> None:
    with checkpointer(tmp_path) as saving:
        assert saving.save(1)
        assert saving.latest_step is None
        record = saving.last_save
        assert record is not None
        assert (record.step, record.total_s) == (1, None)
        assert saving.is_saving
        gate.set()
        saving.wait()

        assert not saving.is_saving
        assert saving.latest_step == 1
        record = saving.last_save
        assert record is not None
        assert record.total_s is not None
        assert record.total_s > record.blocking_s > 0


def test_a_wait_is_bounded_and_may_be_tried_again(
    tmp_path: Path, gate: threading.Event
) -> None:
    saving = checkpointer(tmp_path, timeout=0.05)
    saving.save(7)

    with pytest.raises(
        CheckpointTimeoutError,
        match=r"step 7 did not end within 0\.05 seconds \(the write",
    ):
        saving.wait()
    with pytest.raises(CheckpointTimeoutError):
        saving.save(8)

    gate.set()
    flight = saving._last  # pyright: ignore[reportPrivateUsage]
    assert flight is not None
    flight._done.result(600)  # pyright: ignore[reportPrivateUsage]
    saving.close()
    assert saving.steps() == [7]


def test_a_long_wait_for_a_save_is_told_while_it_lasts(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def open_gate(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        gate.set()
        return False

    monkeypatch.setattr("roxxel_ckpt._save.save._TOLD_AFTER_S", 0.01)
    monkeypatch.setattr(logging.getLogger("roxxel_ckpt"), "filters", [open_gate])
    saving = checkpointer(tmp_path, timeout=600)

    saving.save(7)
    saving.wait()

    assert saving.steps() == [7]
    assert len(told) == 1
    assert f"{tmp_path}: waiting for the save of step 7" in told[0]


def test_files_are_asked_for_when_the_arrays_are_there_and_the_step_is_not(
    tmp_path: Path,
) -> None:
    seen: list[tuple[list[int], bool, bool]] = []

    def look() -> dict[str, Any]:
        is_written = any(tmp_path.rglob("digests/0.json"))
        is_here = threading.current_thread() is threading.main_thread()
        seen.append((saving.steps(), is_written, is_here))
        return {}

    with checkpointer(tmp_path) as saving:
        assert saving.save(1, files=look)
        saving.wait()
        assert saving.save(1, files=look) is False
        assert saving.save(2)

    assert seen == [([], True, False)]
    assert saving.steps() == [1, 2]


def test_a_step_does_not_exist_if_its_files_fail(tmp_path: Path) -> None:
    saving = checkpointer(tmp_path, max_to_keep=1)
    save_all(saving, 1)

    assert saving.save(2, files=no_space)
    with pytest.raises(
        CheckpointWriteError, match=r"save of step 2 failed \(.*No space left"
    ):
        saving.wait()

    assert saving.steps() == [1]
    assert saving.restore() == 1
    assert saving.save(2)
    saving.close()
    assert saving.steps() == [2]


def test_a_failed_write_is_raised_at_the_next_call_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = checkpointer(tmp_path, max_to_keep=1)
    save_all(saving, 1)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", no_space)
        assert saving.save(2)
        with pytest.raises(CheckpointWriteError) as caught:
            saving.save(3)

    assert str(caught.value) == (
        f"{tmp_path}: the save of step 2 failed (OSError: [Errno 28] No space left on "
        "device); earlier checkpoints are unchanged; make room there, or give "
        "checkpoint_path a folder that this program can write"
    )
    assert saving.steps() == [1]
    save_all(saving, 3)
    assert saving.steps() == [3]
    saving.close()


def test_a_save_that_cannot_begin_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = checkpointer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "staged", no_space)
        # `caught` holds the error, as a caller does who reports it later.
        with pytest.raises(CheckpointWriteError, match="step 1 cannot begin") as caught:
            saving.save(1)
    assert "No space left on device" in str(caught.value)

    with checkpointer(tmp_path) as another:
        assert another.save(1)


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits on processes")
def test_a_full_disk_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    import resource

    state = nnx.Dict(a=nnx.Variable(np.random.default_rng(0).normal(size=100_000)))
    saving = Checkpointer(tmp_path, state)
    save_all(saving, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    # The system refuses the bytes beyond the limit, as that of a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, hard))
    try:
        assert saving.save(2)
        with pytest.raises(
            CheckpointWriteError,
            match=r"step 2 failed \(File too large\); earlier .*; make room there, or",
        ):
            saving.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert saving.steps() == [1]
    save_all(saving, 2)
    assert saving.restore() == 2
    saving.close()
    assert names(tmp_path) == ["1", "2"]


def test_a_step_whose_name_cannot_be_flushed_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fsync = tmp_path / "run", os.fsync
    with checkpointer(folder, max_to_keep=1, keep_best=0) as saving:
        save_all(saving, 1)

        def refuse(descriptor: int) -> None:
            if os.fstat(descriptor).st_ino == folder.stat().st_ino:
                raise OSError(5, "Input/output error")
            fsync(descriptor)

        with monkeypatch.context() as context:
            context.setattr(os, "fsync", refuse)
            saving.save(2)
            with pytest.raises(CheckpointWriteError, match="Input/output error"):
                saving.wait()
        assert 1 in saving.steps()

        save_all(saving, 3)
    assert saving.steps() == [3]


def test_a_save_whose_thread_cannot_start_fails_and_blocks_no_later_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("roxxel-ckpt-save"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with checkpointer(tmp_path, timeout=600) as saving:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(
                CheckpointWriteError,
                match=r"step 1 cannot begin \(RuntimeError: can't start new thread\)",
            ):
                saving.save(1)
        save_all(saving, 2)

    assert checkpointer(tmp_path).steps() == [2]
    assert names(tmp_path) == ["2"]


def test_an_error_in_the_loop_is_not_hidden_by_one_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "rename", no_space)
    saving = checkpointer(tmp_path)
    saving.save(2)
    with pytest.raises(KeyError, match="mine"), saving:
        raise KeyError("mine")
    assert "the save of step 2 failed" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointWriteError, match="cannot hold checkpoints"):
        checkpointer(tmp_path / "file" / "run").save(1)


def test_a_second_checkpointer_waits_for_the_first_of_this_process(
    tmp_path: Path,
) -> None:
    first, second = checkpointer(tmp_path), checkpointer(tmp_path)
    first.save(1)
    second.save(2)
    second.close()
    first.close()

    assert second.steps() == [1, 2]


def test_the_live_state_changes_only_when_all_of_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = make(seed=0)
    saving = Checkpointer(tmp_path, model, optimizer)
    save_all(saving, 1)
    train(model, optimizer, range(1))
    before = content(model, optimizer)

    def fail(*_: object) -> None:
        raise ValueError("a disk that fails\nand more of it")

    monkeypatch.setattr(orbax, "read_arrays", fail)
    with pytest.raises(
        Exception, match=r"the arrays cannot be read \(ValueError: a disk that fails\)"
    ):
        saving.restore()

    assert content(model, optimizer) == before


def test_threads_may_save_at_the_same_time(tmp_path: Path) -> None:
    refused: list[int] = []

    def save(step: int) -> None:
        try:
            saving.save(step)
        except CheckpointWriteError:  # a later step was first
            refused.append(step)

    with checkpointer(tmp_path, max_to_keep=None) as saving:
        threads = [threading.Thread(target=save, args=(step,)) for step in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        saving.wait()

        assert sorted(saving.steps() + refused) == [0, 1, 2, 3]
        assert saving.restore() == 3


def test_a_full_disk_is_reported_in_its_own_words() -> None:
    wrapped = ValueError(
        'RESOURCE_EXHAUSTED: Error writing "model/a/0" in OCDBT database at local file '
        '"/d/": Failed to write 14 bytes to file 6: No space left on device '
        "[os_error_code='28']"
    )
    assert brief(wrapped) == "No space left on device"
    noted = wrapped.args[0].replace("[os", "[tensorstore_spec='{\"a\": [1]}'] [os")
    assert brief(ValueError(noted)) == "No space left on device"
    by_orbax = Exception("Encountered error while reading array index: ()")
    by_orbax.__cause__ = wrapped
    assert brief(by_orbax) == "No space left on device"
    assert brief(KeyError()) == "KeyError()"
    assert len(brief(ValueError("x" * 1000))) == 200
