"""Every benchmark of the trainer runs once, small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import packing_training, trainer_memory, trainer_overhead

if TYPE_CHECKING:
    from pathlib import Path


def test_training_on_packed_documents(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(folder: Path, _: object, arm: str, *more: int) -> tuple[float, ...]:
        return len(arm), len([*folder.glob("packed_*.rox")]), more[0] / 4

    monkeypatch.setattr(packing_training, "run", run)  # Training takes minutes.
    documents = [bytes([65 + n % 20]) * (40 + n % 90) for n in range(400)]
    config = packing_training.config_of(width=8, num_layers=1)

    packing_training.compare(tmp_path, (documents, documents[:8]), config, 2, 1)

    said = capsys.readouterr().out
    assert said.count("mean:") == 3
    assert "bins seed 0: 4.0000  1.0000  0.5000" in said


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
