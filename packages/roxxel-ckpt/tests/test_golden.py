"""Checkpoints of the first writer are restored, and damage in them is found."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from roxxel_ckpt import CheckpointDamagedError, Checkpointer

from .golden_states import Model, on_all_devices, on_one_device
from .helpers import content, flip

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a golden folder."""
    copy = tmp_path / "run"
    shutil.copytree(GOLDEN / request.param, copy)
    return copy


@pytest.mark.parametrize("put", [on_one_device, on_all_devices])
@pytest.mark.parametrize("release", [False, True])
def test_golden_checkpoint_restores_bit_for_bit(
    folder: Path,
    put: object,
    release: bool,
) -> None:
    fresh = Model(9, put)  # pyright: ignore[reportArgumentType] - one of two functions

    reading = Checkpointer(folder, fresh)

    assert reading.peek() == (2, {"step": 2})
    assert reading.restore(strict=True, release=release) == 2
    assert content(fresh) == content(Model(2, put))  # pyright: ignore[reportArgumentType]
    assert reading.metrics(2) == {"loss": 0.5}


def test_damage_in_a_golden_checkpoint_is_found(folder: Path) -> None:
    step = folder / "2"
    files = sorted(path for path in step.rglob("*") if path.is_file())
    reading = Checkpointer(folder, Model(9, on_one_device))
    rng = random.Random(0)
    for path in files:
        byte, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        flip(path, byte, bit)
        with pytest.raises(CheckpointDamagedError):
            reading.restore(2)
        flip(path, byte, bit)
    for path in files:
        path.rename(path.with_name("hidden"))
        with pytest.raises(CheckpointDamagedError):
            reading.restore(2)
        path.with_name("hidden").rename(path)

    assert reading.restore(2) == 2
