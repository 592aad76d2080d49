"""What a process says of those that are missing, where it cannot see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_train._together import meeting

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_process_0_counts_nobody_where_the_system_lists_no_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_TABLES", (tmp_path / "none",))  # as on macOS

    said = meeting.missing("127.0.0.1:62123", 0, 3)

    assert "does not list who is connected" in said


def test_an_address_that_cannot_be_looked_up_is_one_that_does_not_answer() -> None:
    said = meeting.missing("node..cluster:62123", 1, 3)

    assert "process 0 does not answer at node..cluster:62123" in said
