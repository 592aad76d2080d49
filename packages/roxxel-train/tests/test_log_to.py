"""Sinks that a trainer makes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from roxxel_curriculum import Phase
from roxxel_train import Logger, RunFolder

from .helpers import trainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def test_sinks_by_name_write_into_the_folder_of_the_run(tmp_path: Path) -> None:
    for steps in (2, 4):
        phases = [Phase(6, 4, 9), Phase(steps, 2, 17)]
        trainer(tmp_path, phases, log_to=["tensorboard"]).run()

    run = tmp_path / "run"
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert {path.name for path in run.iterdir()} <= RunFolder.NAMES


def test_options_of_a_sink_are_its_arguments(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    trainer(tmp_path, log_to={"tensorboard": {"log_dir": elsewhere}}).run()

    assert len(list(elsewhere.iterdir())) == 1


def test_a_sink_that_fails_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("a file in place of the folder")

    summary = trainer(tmp_path, log_to=["tensorboard"], log_every=1).run()

    assert summary.complete
    log = (tmp_path / "run" / "system.log").read_text()
    assert log.count("WARNING sink 0 (TensorBoard) failed and gets no more rows: ") == 1


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"log_to": ["tensorbord"]},
            ValueError,
            "'tensorbord', but the sinks are .*, 'wandb'; did you mean 'tensorboard'",
        ),
        ({"log_to": ["x"]}, ValueError, "'wandb'; name one of these"),
        (
            {"log_to": "tensorboard"},
            TypeError,
            "log_to must be a list, .*, got 'tensorboard'",
        ),
        (
            {"log_to": {"tensorboard": {"folder": "x"}}},
            TypeError,
            "log_to, sink 'tensorboard': .*unexpected keyword argument 'folder'",
        ),
        (
            {"log_to": ["tensorboard"], "save_path": None},
            ValueError,
            "log_to is given without save_path; give save_path and log_to",
        ),
        (
            {"log_to": ["tensorboard"], "logger": Logger()},
            ValueError,
            "log_to is given with a logger",
        ),
    ],
)
def test_wrong_sinks_are_named(
    tmp_path: Path, options: Mapping[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        trainer(tmp_path, **options)
    assert not (tmp_path / "run").exists()
