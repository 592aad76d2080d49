"""What a program does can be read while it does it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from roxxel_ckpt import Checkpointer
from roxxel_ckpt.activity import Activity, activities, doing

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_inner_activity_replaces_an_outer_one() -> None:
    with doing("restore"):
        with doing("meet", waits=True):
            assert list(activities().values()) == [Activity("meet", waits=True)]
        assert list(activities().values()) == [Activity("restore")]
    assert activities() == {}


def test_a_restore_says_which_file_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"a": jnp.ones(3)}
    with Checkpointer(tmp_path / "steps") as checkpointer:
        checkpointer.save(1, {}, state=tree)
    seen: set[str] = set()

    def crc32(data: Any, value: int = 0) -> int:
        seen.update(each.what for each in activities().values())
        return of_bytes(data, value)

    of_bytes = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", crc32)
    with Checkpointer(tmp_path / "steps") as checkpointer:
        checkpointer.load(like=tree)

    folder = tmp_path / "steps" / "1" / "state"
    assert any(what.startswith(f"read {folder}/") for what in seen)
