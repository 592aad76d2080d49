"""Loops of PyTorch read the steps of a curriculum, in an environment without JAX."""

# pyright: basic, reportMissingImports=false
# PyTorch is in the environment of the session `bridges` alone.

from __future__ import annotations

import doctest
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import roxxel_curriculum.torch
import torch
from roxxel_curriculum import Curriculum, CurriculumError, Phase
from roxxel_curriculum.digest import add_step, batch_digest, digest_text
from roxxel_curriculum.run_log import METRICS, RunLog
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.testing import PositionReader
from roxxel_curriculum.torch import RankSteps, Steps, step_loader
from torch.utils.data import DataLoader, DistributedSampler

from .torch_ranks import (
    VOCABULARY,
    WRAPPERS,
    sampler_of,
    trained_weights,
)

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler


@pytest.fixture
def sampler() -> Sampler:
    return sampler_of()


def assert_steps(loader: Any, sampler: Sampler, steps: range, rows: Any = ...) -> None:
    found = [batch.numpy() for batch in loader]
    assert len(found) == len(steps)
    for step, batch in zip(steps, found, strict=True):
        assert batch.dtype == np.int64
        assert np.array_equal(batch, sampler.batch(step)[rows])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ],
    ids=["no worker", "forked", "spawned"],
)
def test_batches_are_those_of_the_sampler(sampler: Sampler, options: Any) -> None:
    # Steps 4 and 5 are in phases of different lengths.
    assert_steps(step_loader(sampler, **options), sampler, range(8))


def test_a_loop_goes_on_in_the_middle(sampler: Sampler) -> None:
    assert_steps(step_loader(sampler, 3, num_workers=2), sampler, range(3, 8))
    assert_steps(step_loader(sampler, 3, 6), sampler, range(3, 6))


def test_a_rank_reads_its_own_rows(sampler: Sampler) -> None:
    for rank, rows in enumerate((slice(0, 2), slice(2, 4))):
        loader = step_loader(sampler, rank=rank, world_size=2)
        assert_steps(loader, sampler, range(8), rows)


def check_rows(folder: Path, sampler: Sampler, num_steps: int) -> None:
    """Check that the log of a run has the digest of each of its steps."""
    _, *rows, end = map(json.loads, (folder / METRICS).read_text().splitlines())
    digest = 0
    for step, row in enumerate(rows):
        digest = add_step(digest, step, batch_digest(sampler.batch(step)))
        assert (row["step"], row["digest"]) == (step + 1, digest_text(digest))
    assert (len(rows), end["kind"]) == (num_steps, "end")


def test_a_rank_moves_its_steps_and_records_what_it_got(tmp_path: Path) -> None:
    curriculum = Curriculum(PositionReader(10_000), [Phase(4, 4, 9)])
    steps = StepIterator(curriculum, 3, fields=("tokens", "loss_mask"))
    ranks, whole = RankSteps(steps, num_workers=1), curriculum.sampler(3)

    steps.log_to(tmp_path)
    found = iter(ranks)
    for step in range(2):
        inputs = next(found)["inputs"]
        assert steps.step == step + 1
        ranks.note(inputs)
    assert np.array_equal(ranks.first()["inputs"].numpy(), whole.batch(0)[:, :-1])
    assert steps.step == 2
    assert np.array_equal(next(found)["inputs"].numpy(), whole.batch(2)[:, :-1])
    steps.close()
    check_rows(tmp_path, whole, 2)


def test_the_log_of_a_loop_has_the_digest_of_every_step(
    sampler: Sampler, tmp_path: Path
) -> None:
    with RunLog(tmp_path, sampler) as log:
        for step, batch in enumerate(step_loader(sampler, num_workers=1)):
            log.record(step, batch, loss=2.5)

    check_rows(tmp_path, sampler, sampler.total_steps)


def test_fields_become_a_dict_of_tensors() -> None:
    curriculum = Curriculum(PositionReader(10_000), [Phase(2, 4, 9)])
    sampler = curriculum.sampler(0, fields=["tokens", "segment_ids", "loss_mask"])

    [batch] = step_loader(sampler, 1)

    assert batch.keys() == {"tokens", "segment_ids", "loss_mask"}
    for name, wanted in sampler.batch(1).items():
        assert np.array_equal(batch[name].numpy(), wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda steps: DistributedSampler(steps, 2, 0),
        lambda steps: DataLoader(steps, batch_size=None, shuffle=True),
        lambda steps: [*DataLoader(steps, batch_size=4)],
    ],
    ids=["distributed", "shuffled", "in groups"],
)
def test_samplers_of_items_are_refused_with_the_right_way(
    make: Any, sampler: Sampler
) -> None:
    with pytest.raises(TypeError, match="step_loader"):
        make(Steps(sampler))


def test_a_batch_that_ranks_cannot_share_is_an_error(sampler: Sampler) -> None:
    with pytest.raises(CurriculumError, match=r"batch_size=4.* 3 processes"):
        step_loader(sampler, rank=0, world_size=3)
    with pytest.raises(ValueError, match="2 of 2"):
        step_loader(sampler, rank=2, world_size=2)
    with pytest.raises(ValueError, match=r"\[5, 9\).* 8"):
        step_loader(sampler, 5, 9)


@pytest.mark.parametrize("wrapper", [*WRAPPERS])
def test_two_ranks_train_as_one_does(wrapper: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    file = tmp_path / "weights.pt"
    program = Path(__file__).with_name("torch_ranks.py")
    command = [sys.executable, str(program), wrapper, str(file)]

    ranks = [
        subprocess.Popen(command, env={**os.environ, **told, "RANK": rank})
        for rank in "01"
    ]

    assert [rank.wait(120) for rank in ranks] == [0, 0]
    torch.testing.assert_close(torch.load(file), trained_weights())


def test_accelerate_takes_the_loader_as_it_is(sampler: Sampler) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Embedding(VOCABULARY, 2)
    optimizer = torch.optim.SGD(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    seen: list[Any] = []
    for batch in step_loader(
        sampler,
        5,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    ):
        accelerator.backward(model(batch.to(accelerator.device)).square().mean())
        optimizer.step()
        seen.append(batch)
    assert_steps(seen, sampler, range(5, 8))


def test_the_trainer_of_hugging_face_resumes_at_a_step(
    sampler: Sampler, tmp_path: Path
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    seen: list[Any] = []

    class OurTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return step_loader(
                sampler,
                start,
                rank=self.args.process_index,
                world_size=self.args.world_size,
                transform=lambda batch: {"input_ids": batch, "labels": batch},
            )

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            seen.append(inputs["input_ids"])
            return super().training_step(model, inputs, *rest)

    for steps in (3, 8):
        last = get_last_checkpoint(str(tmp_path))
        start = 0 if last is None else int(last.rpartition("-")[2])
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=8, n_layer=1, n_head=1
        )
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=steps,
            save_steps=3,
            ignore_data_skip=True,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = OurTrainer(GPT2LMHeadModel(config), arguments)
        trainer.train(resume_from_checkpoint=last)

    assert_steps(seen, sampler, range(8))


def test_the_page_runs_as_it_is_shown(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    runner = root / "tests-integration" / "programs" / "page.py"
    page = root / "docs" / "guides" / "pytorch.md"

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    done = subprocess.run(
        [sys.executable, str(runner), str(page)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_of_the_module_runs() -> None:
    assert doctest.testmod(roxxel_curriculum.torch).failed == 0


def test_no_jax_is_needed() -> None:
    assert "jax" not in sys.modules
