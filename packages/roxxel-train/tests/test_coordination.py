from __future__ import annotations

from roxxel_train._coordination import client


def test_lone_process_has_no_client() -> None:
    assert client() is None
