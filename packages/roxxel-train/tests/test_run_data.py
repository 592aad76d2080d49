"""The folder of a run alone gives every batch that the run has read and will read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, recorded_sampler
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel
from roxxel_train import RunFolder, RunFolderError, RunMismatchError

from .helpers import corpus, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Sampler


def sampler_of(folder: Path) -> Sampler:
    """Return the sampler of a run, from its folder alone."""
    data = RunFolder(folder).data()
    readers = {name: Roxxel(str(path)) for name, path in data.sources.items()}
    return recorded_sampler(data.state, readers)


def batches(sampler: Sampler, steps: range) -> list[bytes]:
    return [np.asarray(sampler.batch(step)).tobytes() for step in steps]


def fail(_: Any) -> None:
    raise RuntimeError("enough")


def blended(folder: Path, share: float) -> Curriculum:
    other = Roxxel(folder / "other.rox")
    other.write([np.arange(600) % 13], vocab_size=13, exist="keep")
    phase = Phase(20, 4, 9, {"self": 1, "other": share})
    return Curriculum(corpus(folder), [phase], {"other": other}, longest=17)


def test_the_data_of_a_run_are_those_that_its_trainer_read(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    one.run()

    data = RunFolder(tmp_path / "run").data()

    assert data.sources == {"self": str(tmp_path / "data_*.rox")}
    assert data.trained == data.state == one.sampler.state(10)
    assert batches(sampler_of(tmp_path / "run"), range(10)) == batches(
        one.sampler, range(10)
    )


def test_an_edit_inside_a_phase_leaves_the_batches_before_it(tmp_path: Path) -> None:
    first = trainer(
        tmp_path, curriculum=blended(tmp_path, 0.5), eval_fn=fail, eval_every=6
    )
    with pytest.raises(RuntimeError, match="enough"):
        first.run()
    second = trainer(tmp_path, curriculum=blended(tmp_path, 3))
    second.run()

    sampler = sampler_of(tmp_path / "run")

    assert batches(sampler, range(20)) == batches(second.sampler, range(20))
    assert batches(sampler, range(6)) == batches(first.sampler, range(6))
    natural = blended(tmp_path, 3).sampler(0)
    assert batches(natural, range(6)) != batches(first.sampler, range(6))


def test_the_next_start_writes_what_a_lost_log_has_held(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    before = RunFolder(tmp_path / "run").data()
    (tmp_path / "run" / "metrics.jsonl").unlink()

    with pytest.raises(RunFolderError, match=r"no row of a start.*start the run again"):
        RunFolder(tmp_path / "run").data()

    trainer(tmp_path).run()
    assert RunFolder(tmp_path / "run").data() == before


def test_a_reader_without_a_path_is_recorded_as_none(tmp_path: Path) -> None:
    curriculum = Curriculum(
        PositionReader(5000, dtype=np.uint8), [Phase(4, 4, 9)], longest=9
    )
    one = trainer(tmp_path, curriculum=curriculum, loss_fn=constant)
    one.run()

    assert RunFolder(tmp_path / "run").data().sources == {"self": None}


def constant(model: Any, batch: Any) -> Any:
    return (model.out.bias[...] ** 2).sum() + 0.0 * batch.sum()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"sources": {}, "state": 3},
        {"sources": None, "state": {}},
    ],
)
def test_a_damaged_row_of_a_start_is_named(tmp_path: Path, data: object) -> None:
    trainer(tmp_path).run()
    start = {"kind": "start", "step": 10, "data": data}
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(start) + "\n")

    with pytest.raises(RunMismatchError, match=r"metrics\.jsonl: .*; restore the file"):
        RunFolder(tmp_path / "run").data()
