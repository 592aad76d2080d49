"""The tutorial: its program, and what it says about the parts of a run.

| claim | test |
| --- | --- |
| The names of the program come from `roxxel` | `test_program_trains_the_whole_schedule` |
| The program trains on one device and on a mesh of eight | `test_program_trains_the_whole_schedule` |
| Constructing a streamer opens no file | `packages/roxxel-format/tests/test_reading.py::test_constructing_touches_no_file_and_reading_nothing_is_the_error` |
| A streamer maps its shards into memory | `tests-integration/test_document_why_roxxel.py::test_reading_maps_the_shards` |
| A streamer is a sequence of blocks | `packages/roxxel-format/tests/test_reading.py::test_blocks_make_up_the_token_line` |
| `write` makes a corpus of a generator of integer arrays | `test_corpus_is_what_the_generator_gave` |
| Blocks have 4096 bytes | `test_corpus_is_what_the_generator_gave` |
| The separator follows every document | `test_corpus_is_what_the_generator_gave` |
| No shard of several documents exceeds `max_shard_bytes` | `packages/roxxel-format/tests/test_writing.py::test_only_a_shard_of_one_document_is_larger_than_asked` |
| `estimate_steps` counts the steps of one epoch | `packages/roxxel-format/tests/test_reading.py::test_estimate_steps_is_an_upper_bound`, `test_program_trains_the_whole_schedule` |
| `with Roxxel(...)` closes the corpus | `packages/roxxel-format/tests/test_reading.py::test_maps_are_given_back_when_a_corpus_is_closed` |
| A phase takes steps, batch size, sequence length and weights, in this order | `packages/roxxel-curriculum/tests/test_curriculum.py::test_arguments_of_a_phase_have_the_order_of_the_tutorial` |
| A curriculum wraps a primary streamer and others to blend | `packages/roxxel-curriculum/tests/test_curriculum.py::test_a_curriculum_gives_back_the_streamers_it_was_given` |
| Weights blend the streamers of a phase | `packages/roxxel-curriculum/tests/test_proportions.py::test_planned_tokens_are_shares_of_the_weights_in_each_phase` |
| The steps of the phases add up to the updates of the run | `packages/roxxel-curriculum/tests/test_curriculum.py::test_steps_of_the_phases_add_up_to_those_of_the_run`, `test_program_trains_the_whole_schedule` |
| The trainer changes the shape of batches at the step where a phase ends | `test_program_trains_the_whole_schedule` |
| Changing streams needs no work of the program | `packages/roxxel-loader/tests/test_device_stream.py::test_shapes_and_shardings_may_change_on_the_way` |
| The trainer takes model, optimizer, curriculum and loss function | `test_program_trains_the_whole_schedule` |
| The trainer compiles the update | `tests-integration/test_document_why_roxxel.py::test_loss_function_is_traced_and_not_called_at_every_step` |
| Batches lie on `mesh` as `data_sharding` says | `packages/roxxel-train/tests/test_placement.py::test_batch_that_divides_keeps_its_sharding` |
| A batch of one sequence trains on eight devices | `test_batch_that_does_not_divide_is_said_and_trained` |
| The trainer makes checkpointer, log and model state itself | `test_folder_holds_checkpoints_log_and_metrics` |
| The log is written on a thread | `packages/roxxel-train/tests/test_log.py::test_logger_writes_text_and_rows_and_leaves_no_thread` |
| Checkpoints are written in the background | `packages/roxxel-ckpt/tests/test_background.py::test_save_returns_before_the_checkpoint_is_there` |
| `checkpoint_every`, `log_every` and `eval_every` count updates | `packages/roxxel-train/tests/test_trainer.py::test_checkpoints_are_ranked_by_the_mean_loss_since_the_one_before`, `packages/roxxel-train/tests/test_trainer.py::test_evaluations_are_logged_and_do_not_disturb_training` |
| `eval_fn` gets a state whose `step[...]` is the number of updates | `test_text_of_the_evaluation_is_in_the_metrics` |
| The text that `eval_fn` returns is logged | `test_text_of_the_evaluation_is_in_the_metrics` |
| `seed` decides the order of the data | `packages/roxxel-train/tests/test_trainer.py::test_another_seed_is_refused_by_name` |
| The program may be distributed over processes | `tests-integration/test_process_counts.py::test_batches_on_the_devices_and_losses_are_the_same` |
| The program started again resumes | `test_program_run_again_keeps_the_corpus_and_is_complete` |
"""  # noqa: E501 - a row of the table is one line

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Roxxel
from roxxel_train import RunFolder

from .conftest import program_runner

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.first

# Of 2,000 documents of 128 tokens and a separator.
TOKENS = 2_000 * 129
STEPS = TOKENS // (16 * 1025), int(TOKENS // 32769 * 0.2)


@dataclass(frozen=True)
class Ran:
    """The program, run twice in one folder."""

    devices: int
    folder: Path
    first: subprocess.CompletedProcess[str]
    shard: bytes
    metrics: list[dict[str, Any]]
    again: subprocess.CompletedProcess[str]

    @property
    def run(self) -> Path:
        return self.folder / "run_delta"


@pytest.fixture(scope="module", params=[1, 8], ids=lambda count: f"devices-{count}")
def ran(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    compilation_cache: Path,
) -> Ran:
    folder = tmp_path_factory.mktemp("tutorial")
    run = program_runner(folder, compilation_cache)
    first = run("tutorial.py", devices=request.param)
    assert first.returncode == 0, first.stderr
    rows, _ = RunFolder(folder / "run_delta").rows()
    [shard] = folder.glob("wiki_*.rox")
    written = shard.read_bytes()
    again = run("tutorial.py", devices=request.param)
    assert again.returncode == 0, again.stderr
    return Ran(request.param, folder, first, written, rows, again)


def test_corpus_is_what_the_generator_gave(ran: Ran) -> None:
    with Roxxel(ran.folder / "wiki_*.rox") as corpus:
        tokens = np.asarray(corpus.tokens[:])
        assert tokens.size == TOKENS
        assert (tokens[128::129] == 0).all()
        assert {document.size for document in corpus.documents} == {128}
        assert corpus[0].nbytes == 4096
        assert len(corpus) == -(-tokens.nbytes // 4096)


def test_program_trains_the_whole_schedule(ran: Ran) -> None:
    trained = [row for row in ran.metrics if row["kind"] == "train"]
    last = trained[-1]
    assert (trained[0]["step"], last["step"]) == (1, sum(STEPS))
    assert (trained[0]["phase"], last["phase"]) == (0, 1)
    assert trained[0]["tokens"] == 16 * 1025
    assert last["tokens"] == STEPS[0] * 16 * 1025 + STEPS[1] * 32769
    assert "arning" not in ran.first.stderr


def test_batch_that_does_not_divide_is_said_and_trained(ran: Ran) -> None:
    text = (ran.run / "system.log").read_text()

    said = "batch_size=1 does not divide over the 8 devices" in text
    assert said == (ran.devices == 8)


def test_folder_holds_checkpoints_log_and_metrics(ran: Ran) -> None:
    names = {path.name for path in ran.run.iterdir()}
    assert names >= {"checkpoints", "metrics.jsonl", "run.json", "system.log"}
    steps = [path.name for path in (ran.run / "checkpoints").glob("[0-9]*")]
    assert steps == [str(sum(STEPS))]


def test_text_of_the_evaluation_is_in_the_metrics(ran: Ran) -> None:
    texts = [row["text"] for row in ran.metrics if row["kind"] == "eval"]

    assert texts == [f"[sampled after step {sum(STEPS)}]"]


def test_program_run_again_keeps_the_corpus_and_is_complete(ran: Ran) -> None:
    assert "already complete" in ran.again.stderr
    assert "arning" not in ran.again.stderr
    [shard] = ran.folder.glob("wiki_*.rox")
    assert shard.read_bytes() == ran.shard
    assert RunFolder(ran.run).rows()[0] == ran.metrics
