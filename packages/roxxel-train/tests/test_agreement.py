from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from roxxel_train._agreement import check_same, together


def gather(patch: pytest.MonkeyPatch, of_others: dict[int, Any]) -> None:
    """Let this be process 0 of three, whose others say this, or what it says."""

    def gathered(mine: Any) -> Any:
        return np.stack([of_others.get(process, mine) for process in range(3)])

    patch.setattr(jax, "process_count", lambda: 3)
    patch.setattr(multihost_utils, "process_allgather", gathered)


def test_processes_with_the_same_text_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gather(monkeypatch, {})

    check_same("seed", "1")


def test_process_with_another_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    digests: list[Any] = []

    def keep(mine: Any) -> Any:
        digests.append(mine)
        return np.stack([mine] * 3)

    with monkeypatch.context() as patch:
        gather(patch, {})
        patch.setattr(multihost_utils, "process_allgather", keep)
        check_same("seed", "2")
    gather(monkeypatch, {2: digests[0]})

    with pytest.raises(
        ValueError,
        match=r"processes \[2\] have another seed than process 0; start all of them",
    ):
        check_same("seed", "1")


def test_block_that_fails_elsewhere_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    gather(monkeypatch, {1: np.asarray(True)})

    with pytest.raises(RuntimeError, match="process 1 could not go on"), together():
        pass


def test_block_that_fails_here_raises_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gather(monkeypatch, {})

    with pytest.raises(OSError, match="full"), together():
        raise OSError("full")


def test_lone_process_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(multihost_utils, "process_allgather")

    check_same("seed", "1")
    with together():
        pass
