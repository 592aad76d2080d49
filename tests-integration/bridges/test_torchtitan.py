"""torchtitan trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# torchtitan is in the environment of the session `bridges` alone.

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from . import blended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROWS = "--training.local_batch_size="
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


class Launched(blended.Program):
    """Starts the program as `torchrun` does, on one rank if nothing else is said."""

    def __call__(self, run: str, *options: str, **how: Any) -> blended.Trained:
        one = (*TWO_RANKS[:-1], "--nproc-per-node=1")
        how = {"launcher": one, **how}
        return super().__call__(run, *(options or (f"{ROWS}4",)), **how)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    folder = blended.write(tmp_path_factory.mktemp("titan"))
    return Launched("torchtitan_run.py", folder)


def named(batch: Mapping[str, Any]) -> dict[str, Any]:
    inputs, positions = (batch[name][:, :-1] for name in ("tokens", "positions"))
    return {"input": inputs, "positions": positions, "labels": blended.labels(batch)}


def test_torchtitan_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: Launched,
) -> None:
    train.check_resumed(kill=7)

    assert train.check_batches("whole", named) > 0


def test_two_ranks_go_on_where_one_stopped(train: Launched) -> None:
    assert train("one", kill=7).code != 0
    shutil.rmtree(train.folder / "one-seen")

    done = train("one", f"{ROWS}2", launcher=TWO_RANKS)

    assert done.code == 0, done.said
    rest = range(min(done.losses), blended.STEPS)
    train.check_batches("one", named, rest, ranks=2)
    train.logged("one")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--training.seq_len=64", "set training.seq_len to 128"),
        ("--training.global_batch_size=64", "16 micro batches"),
        ("--training.steps=12", "set training.steps to 10"),
    ],
)
def test_torchtitan_refuses_what_would_read_other_batches(
    train: Launched, option: str, words: str
) -> None:
    train.check_is_refused(option.strip("-"), f"{ROWS}4", option, words=words)


def test_torchtitan_refuses_the_checkpoint_of_another_corpus(
    train: Launched, tmp_path: Path
) -> None:
    train.check_other_corpus_is_refused(tmp_path)
