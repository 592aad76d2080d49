"""Every benchmark of the trainer runs once, small."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("every", ["0", "30", "200"])
def test_overhead_of_a_run_without_a_save_is_a_usage_error(
    every: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        trainer_overhead.main(["--steps", "30", "--checkpoint-every", every])

    assert ended.value.code == 2
    assert (
        f"--checkpoint-every: {every} gives a run of 30 steps no save before its end"
    ) in capsys.readouterr().err


def test_memory() -> None:
    found = trainer_memory.main(["--steps", "200", "--checkpoint-every", "50"])

    assert found["left_threads"] == 0
    assert found["left_processes"] == 0
