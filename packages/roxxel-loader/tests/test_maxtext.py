"""What MaxText is given and refused; the session `bridges(maxtext)` runs MaxText."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, StateMismatch
from roxxel_curriculum.digest import add_step, batch_digest, digest_text
from roxxel_curriculum.run_log import METRICS
from roxxel_format import Roxxel
from roxxel_loader.bridges import maxtext

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = ("tokens", "positions", "segment_ids", "loss_mask")
CONFIG = {
    "checkpoint_dir": "out/run/checkpoints",
    "dataset_type": "grain",
    "enable_rampup_batch_size": False,
    "global_batch_size_to_train_on": 4,
    "global_batch_size_to_eval_on": 4,
    "gradient_accumulation_steps": 1,
    "max_target_length": 16,
    "steps": 5,
    "eval_interval": -1,
}


class StandIn:
    """Stands for MaxText's iterator of global arrays: its batches are the process's."""

    def __init__(self, steps: Any, _: Any) -> None:
        self.steps, self.local_iterator = steps, iter(steps)

    def __iter__(self) -> Any:
        self.local_iterator = iter(self.steps)
        return self

    def __next__(self) -> Any:
        return next(self.local_iterator)


def iterate(trained: Any) -> Any:
    """Stand for an iteration of MaxText, which saves before it tells the loss."""
    next(trained)
    if trained.steps.steps.step == 2:
        trained.steps.get_state()
    return {"scalar": {"learning/loss": 2.5}}


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand for the modules of MaxText."""
    names = (
        *("", ".input_pipeline", ".trainers", ".trainers.pre_train"),
        *(".trainers.pre_train.train", ".input_pipeline.multihost_dataloading"),
        ".input_pipeline.input_pipeline_interface",
    )
    modules = {name: ModuleType(f"maxtext{name}") for name in names}
    vars(modules[names[-2]])["MultiHostDataLoadIterator"] = StandIn
    vars(modules[names[-3]])["training_loop_iteration"] = iterate
    for module in modules.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return modules[names[-1]]


@pytest.fixture
def corpus(tmp_path: Path) -> Roxxel:
    tokens = Roxxel(tmp_path / "corpus.rox")
    tokens.write((np.arange(20) + start for start in range(30)), vocab_size=64)
    return tokens


def curriculum_of(corpus: Roxxel, second: int = 4, **options: Any) -> Curriculum:
    phases = [Phase(3, 4, 9), Phase(2, second, 17)]
    return Curriculum(corpus, phases, **options)


def iterators(interface: Any, **changes: Any) -> tuple[Any, Any]:
    config = SimpleNamespace(**(CONFIG | changes))
    return interface.create_data_iterator(config, jax.make_mesh((1,), ("data",)))


def test_every_batch_has_maxtexts_names_and_learns_what_the_mask_says(
    interface: Any, corpus: Roxxel
) -> None:
    curriculum = curriculum_of(corpus, without={"self": [2]})
    maxtext.feed(curriculum, seed=3)

    found = [*iterators(interface)[0]]

    sampler = curriculum.sampler(3, fields=FIELDS)
    assert len(found) == sampler.total_steps
    num_masked = 0
    for step, batch in enumerate(found):
        wanted = sampler.batch(step)
        for part, columns in (("inputs", slice(-1)), ("targets", slice(1, None))):
            assert np.array_equal(batch[part], wanted["tokens"][:, columns])
            # As MaxText's own batches: a target has the place of its input.
            places = batch[f"{part}_position"]
            assert np.array_equal(places, wanted["positions"][:, :-1])
        segments = wanted["segment_ids"][:, :-1]
        assert np.array_equal(batch["inputs_segmentation"], segments)
        is_learned = wanted["loss_mask"][:, 1:] == 1
        learned = np.where(is_learned, segments, 0)
        assert np.array_equal(batch["targets_segmentation"], learned)
        assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
        num_masked += (~is_learned).sum()
    assert num_masked


def test_a_state_goes_on_with_its_run_and_no_other(
    interface: Any, corpus: Roxxel
) -> None:
    maxtext.feed(curriculum_of(corpus), seed=3)
    steps = iterators(interface)[0]
    whole = [*iterators(interface)[0]]
    next(steps)
    state = steps.steps.get_state()

    resumed = iterators(interface)[0]
    resumed.steps.set_state(state)
    assert np.array_equal(next(resumed)["inputs"], whole[1]["inputs"])

    maxtext.feed(curriculum_of(corpus), seed=4)
    with pytest.raises(StateMismatch, match="seed"):
        iterators(interface)[0].steps.set_state(state)


def test_the_future_of_a_run_may_be_edited_between_two_starts(
    interface: Any, corpus: Roxxel
) -> None:
    maxtext.feed(curriculum_of(corpus), seed=3)
    steps = iterators(interface)[0]
    next(steps)

    maxtext.feed(curriculum_of(corpus, second=2), seed=3)
    resumed = iterators(interface)[0]
    resumed.steps.set_state(steps.steps.get_state())

    assert [len(batch["inputs"]) for batch in resumed] == [4, 4, 2, 2]


def test_the_log_has_what_the_devices_hold_and_waits_for_its_loss(
    interface: Any, corpus: Roxxel, tmp_path: Path
) -> None:
    maxtext.feed(curriculum_of(corpus), seed=3, record=tmp_path / "log")
    trained, _ = iterators(interface)
    training: Any = sys.modules["maxtext.trainers.pre_train.train"]
    for _ in range(5):
        training.training_loop_iteration(trained)

    log = tmp_path / "log" / METRICS
    rows = [json.loads(line) for line in log.read_text().splitlines()][1:]

    assert [(row["step"], row.get("loss")) for row in rows] == [
        *((1, 2.5), (2, None), (3, 2.5))
    ]
    sampler, digest = curriculum_of(corpus).sampler(3), 0
    for step, row in enumerate(rows):
        digest = add_step(digest, step, batch_digest(sampler.batch(step)))
        assert row["digest"] == digest_text(digest)


def test_a_log_that_cannot_go_on_ends_the_run_with_its_error(
    interface: Any, corpus: Roxxel, tmp_path: Path
) -> None:
    training: Any = sys.modules["maxtext.trainers.pre_train.train"]
    maxtext.feed(curriculum_of(corpus), record=tmp_path / "log")
    first, _ = iterators(interface)
    training.training_loop_iteration(first)
    first.steps.steps.close()
    other, _ = iterators(interface, checkpoint_dir="out/other")

    # Not from the iterator, of which MaxText would say that its data has ended.
    with pytest.raises(FileExistsError, match="out/run/checkpoints"):
        training.training_loop_iteration(other)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"global_batch_size_to_train_on": 2}, "per_device_batch_size"),
        ({"gradient_accumulation_steps": 3}, "3 parts .*gradient_accumulation_steps"),
        ({"max_target_length": 15}, "max_target_length to 16"),
        ({"steps": 6}, "set steps to 5"),
        ({"dataset_type": "hf"}, "dataset_type=grain"),
        ({"enable_rampup_batch_size": True}, "enable_rampup_batch_size"),
        ({"eval_interval": 1}, "held_out"),
    ],
)
def test_what_maxtext_would_leave_out_without_a_word_is_refused(
    interface: Any, corpus: Roxxel, changes: dict[str, Any], named: str
) -> None:
    maxtext.feed(curriculum_of(corpus))

    with pytest.raises(ValueError, match=named):
        iterators(interface, **changes)


def test_an_evaluation_begins_anew_each_time(interface: Any, corpus: Roxxel) -> None:
    held_out = Curriculum(corpus, [Phase(2, 2, 9)])
    maxtext.feed(curriculum_of(corpus), held_out=held_out)

    _, evaluated = iterators(interface, eval_interval=1)

    first, again = [*evaluated], [*evaluated]
    assert len(first) == 2
    assert np.array_equal(first[0]["targets"], again[0]["targets"])
    with pytest.raises(ValueError, match="eval_per_device_batch_size"):
        iterators(interface, eval_interval=1, global_batch_size_to_eval_on=1)
