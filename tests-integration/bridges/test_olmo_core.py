"""OLMo-core trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# OLMo-core is in the environment of the session `bridges` alone.

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from roxxel_curriculum import Curriculum, Phase, StateMismatch
from roxxel_curriculum.olmo import StepLoader, StepRecorder
from roxxel_format import Roxxel

from . import blended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> blended.Program:
    folder = blended.write(tmp_path_factory.mktemp("olmo"))
    return blended.Program("olmo_run.py", folder)


def named(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": batch["tokens"][:, :-1], "labels": blended.labels(batch)}


def test_olmo_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: blended.Program,
) -> None:
    train.check_resumed(kill=7)

    assert train.check_batches("whole", named) > 0


def test_two_ranks_go_on_where_one_stopped(train: blended.Program) -> None:
    assert train("one", kill=7).code != 0
    shutil.rmtree(train.folder / "one-seen")

    done = train("one", launcher=TWO_RANKS)

    assert done.code == 0, done.said
    rest = range(min(done.losses), blended.STEPS)
    train.check_batches("one", named, rest, ranks=2)
    train.logged("one")


def test_olmo_refuses_a_phase_that_is_longer_than_it_expects(
    train: blended.Program,
) -> None:
    train.check_is_refused("short", "64", words="set max_sequence_length to 128")


def test_olmo_refuses_the_checkpoint_of_another_corpus(
    train: blended.Program, tmp_path: Path
) -> None:
    train.check_other_corpus_is_refused(tmp_path)


def test_a_log_is_refused_that_would_call_skipped_steps_trained() -> None:
    recorder = StepRecorder(folder="unwritten")
    recorder.trainer = SimpleNamespace(steps_to_skip=[(2, 4)], data_loader=None)

    with pytest.raises(ValueError, match="without StepRecorder"):
        recorder.pre_train()


def test_a_run_is_read_once_and_only_by_its_own_loader(
    train: blended.Program,
) -> None:
    folder = train.folder
    corpus = Roxxel(folder / "prose.rox")
    curriculum = Curriculum(corpus, [Phase(2, 4, 17)])
    loader = StepLoader(curriculum, folder, seed=3)
    loader.reshuffle(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.reset()

    with pytest.raises(ValueError, match="batch size scheduler"):
        loader.global_batch_size = 128
    with pytest.raises(ValueError, match="total_batches"):
        loader.reshuffle(2)
    with pytest.raises(StateMismatch, match="seed"):
        StepLoader(curriculum, folder, seed=4).load_state_dict(state)
    longer = StepLoader(Curriculum(corpus, [Phase(5, 4, 17)]), folder, seed=3)
    longer.load_state_dict(state)
    longer.reshuffle(2)
    assert len([*longer]) == 4
