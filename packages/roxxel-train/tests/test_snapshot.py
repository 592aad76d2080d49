"""A run on devices with room for a second copy of its state saves behind its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._run.preflight import find_problems
from roxxel_train._step.compiled import CompiledShape

from .helpers import rows, trainer, values

if TYPE_CHECKING:
    from pathlib import Path

COPIED = "on the devices; the copy is saved behind the next steps"
WAITED = "for the copy to the host, because the devices have no room for a second one"


def give_memory(patch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Let the devices report that so much of their memory is free."""
    stats = {"bytes_limit": num_bytes, "peak_bytes_in_use": 0}
    patch.setattr(type(jax.devices()[0]), "memory_stats", lambda _: stats)


def test_a_run_says_once_how_it_saves_and_resumes_from_every_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer(tmp_path / "whole", log_every=1)
    whole.run()
    give_memory(monkeypatch, 1 << 30)

    folder, last = tmp_path / "parts", whole
    for until in (3, 6, 10):
        last = trainer(folder, checkpoint_every=1, log_every=1)
        last.run(until=until)

    log = (folder / "run" / "system.log").read_text()
    assert [log.count(text) for text in (COPIED, WAITED)] == [3, 0]
    assert values(last) == values(whole)
    losses = [
        [row["loss"] for row in rows(each) if row["kind"] == "train"]
        for each in (tmp_path / "whole", folder)
    ]
    assert losses[0] == losses[1]


def test_a_run_says_that_its_saves_wait_where_no_device_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_memory(monkeypatch, 1)

    trainer(tmp_path, checkpoint_every=2).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert [log.count(text) for text in (COPIED, WAITED)] == [0, 1]


@given(step=st.integers(0, 99), limit=st.integers(1, 200))
def test_preflight_says_whether_a_copy_fits_beside_the_largest_step(
    step: int, limit: int
) -> None:
    state = [jax.numpy.zeros(4), jax.numpy.zeros((3, 3))]  # 52 bytes
    shapes = tuple(CompiledShape((2, 9), 1.0, size) for size in (step, step // 2))
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": limit})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: [device])
        found = find_problems(shapes, lambda *_: "", state, None, 1)

    assert found.is_saved_behind is (step + 52 <= limit)
    [line] = [x for x in str(found).splitlines() if x.startswith("a checkpoint holds")]
    assert ("training goes on" in line) is (step + 52 <= limit)
    assert ("waits for its copy to the host" in line) is (step + 52 > limit)
