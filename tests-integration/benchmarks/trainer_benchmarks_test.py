"""Every benchmark of the trainer runs once, small."""

from __future__ import annotations

from . import trainer_memory, trainer_overhead


def test_overhead() -> None:
    found = trainer_overhead.main(
        [
            *("--rounds", "1", "--steps", "30", "--step-ms", "1"),
            *("--checkpoint-every", "20", "--traced", "10"),
        ]
    )

    assert found["over"] > 0
    assert found["rows"] > 0
    assert 0 <= found["nothing queued"] <= 1


def test_memory() -> None:
    found = trainer_memory.main(["--steps", "200", "--checkpoint-every", "50"])

    assert found["left_threads"] == 0
    assert found["left_processes"] == 0
