"""levanter trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# levanter is in the environment of the session `bridges` alone.

from __future__ import annotations

import asyncio
import importlib
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from . import blended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHORT = 6
"""The step at which the length of the run changes, and the first launch ends."""


class Launches(blended.Program):
    """Starts the program once for each length of the run."""

    def __call__(self, run: str, *options: str, **how: Any) -> blended.Trained:
        code, said, losses = super().__call__(run, *options, **how)
        if code == 0 and max(losses, default=SHORT) == SHORT - 1:
            code, said, more = super().__call__(run, *options, **how)
            losses |= more
        return blended.Trained(code, said, losses)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    folder = blended.write(tmp_path_factory.mktemp("levanter"))
    return Launches("levanter_run.py", folder)


def named(batch: Mapping[str, Any]) -> dict[str, Any]:
    # The weight stands at the token before the one that it is about.
    weights = np.pad(batch["loss_mask"][:, 1:], ((0, 0), (0, 1)))
    segments = batch["segment_ids"] - 1
    return {"tokens": batch["tokens"], "weights": weights, "segments": segments}


def test_levanter_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: Launches,
) -> None:
    train.check_resumed(kill=8)

    assert train.check_batches("whole", named) > 0


def test_two_processes_go_on_where_one_stopped(train: Launches) -> None:
    assert train("one", kill=5).code != 0
    for step in (train.folder / "one" / "checkpoints" / "r").iterdir():
        # levanter's processes cannot save over what another number of them has begun.
        if not (step / "metadata.json").exists():
            shutil.rmtree(step)

    done = train("one", processes=2)

    assert done.code == 0, done.said
    first = min(done.losses)
    assert 0 < first <= 5
    train.check_batches("one", named, range(first, blended.STEPS))
    train.logged("one")


def test_levanter_refuses_the_checkpoint_of_another_corpus(
    train: Launches, tmp_path: Path
) -> None:
    train.check_other_corpus_is_refused(tmp_path)


@pytest.fixture
def fed(train: Launches, tmp_path: Path) -> Any:
    """Return a function that feeds a config with settings of a trainer."""

    def fed(max_seq_len: int = 129, **trainer: Any) -> Any:
        # levanter warns when it is imported, and a warning is an error here.
        of = importlib.import_module
        config = of("levanter.main.train_lm").TrainLmConfig(
            trainer=of("levanter.trainer").TrainerConfig(**trainer),
            model=of("levanter.models.llama").LlamaConfig(max_seq_len=max_seq_len),
        )
        curriculum = blended.curriculum_of(train.folder)
        feed = of("roxxel_loader.bridges.levanter").feed
        return feed(config, curriculum, blended.SEED, record=tmp_path / "log")

    return fed


@pytest.mark.filterwarnings("ignore")
def test_levanter_refuses_what_would_read_other_batches(fed: Any) -> None:
    with pytest.raises(ValueError, match="set max_seq_len to 129"):
        fed(128, id="r")
    for trainer in ({}, {"id": "r", "initialize_from": "elsewhere"}):
        with pytest.raises(ValueError, match=r"set trainer\.id"):
            fed(**trainer)


@pytest.mark.filterwarnings("ignore")
def test_levanter_can_write_down_the_config_that_it_is_given(fed: Any) -> None:
    written = importlib.import_module("draccus").dump(fed(id="r"))

    assert "train_seq_len: 65" in written


@pytest.mark.filterwarnings("ignore")
def test_levanter_itself_refuses_rows_of_another_length_than_its_launch(
    fed: Any,
) -> None:
    position = importlib.import_module("haliax").Axis("position", 65)
    rows = fed(id="r").data.train_set(position, None, key=None)
    first_of_step_6 = SHORT * 8

    with pytest.raises(ValueError, match=r"\(129\) must match Pos axis size \(65\)"):
        asyncio.run(rows.get_batch([first_of_step_6]))


@pytest.mark.filterwarnings("ignore")
def test_a_run_ends_if_its_log_cannot_be_written(
    fed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = fed(id="r").trainer.tracker[-1].init("r")

    with pytest.raises(SystemExit, match="step 3 cannot be recorded"):
        recorder.log({"train/loss": 2.5}, step=3)  # steps 0 to 2 are missing
