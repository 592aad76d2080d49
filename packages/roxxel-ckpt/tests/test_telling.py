"""A process whose save fails after all have agreed on it tells the others."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_ckpt import CheckpointWriteError, coordination
from roxxel_ckpt._place.disk import LocalFolder

from .helpers import checkpointer

if TYPE_CHECKING:
    from pathlib import Path

ANSWERS = {
    "write to the folder": "mark",
    "read the folder": [],
    "save step 3": ["one", False],
}


class Service:
    """The service of two processes, seen from process 1: process 0 agrees at once."""

    process_index, process_count = 1, 2

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def set(self, _: str, value: Any, *, overwrite: bool = False) -> bool:
        del overwrite
        self.said.append(value)
        return True

    def get(self, *_: Any) -> Any:
        said = self.said[-1]
        if "error" in said:
            return {"error": said["error"]}
        return {"value": ANSWERS[said["call"]]}


def test_a_save_that_cannot_begin_on_one_process_ends_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    service = Service()
    monkeypatch.setattr(coordination, "coordination_service", lambda: service)
    monkeypatch.setattr(LocalFolder, "staged", full)

    (tmp_path / "mark").touch()  # else the save looks for it for five seconds
    saving = checkpointer(tmp_path)
    with pytest.raises(CheckpointWriteError, match=r"step 3 cannot begin .*No space"):
        saving.save(3)
    saving.wait()  # until the thread of the save has told the others

    assert service.said[-1]["call"] == "commit step 3"
    assert "No space left" in service.said[-1]["error"][1]
