"""What the page "Why Roxxel?" says of reading, training, saving and logging.

| claim | test |
| --- | --- |
| Roxxel trains Flax NNX models in JAX | `packages/roxxel-train/tests/test_step.py::test_update_equals_the_one_a_person_writes_with_nnx` |
| No process loads data beside the one that trains | `test_run_starts_no_process_and_no_shared_memory` |
| A run does not use `/dev/shm` | `test_run_starts_no_process_and_no_shared_memory` |
| A new phase or epoch starts and joins no process | `test_run_starts_no_process_and_no_shared_memory` |
| No process and no thread is left after a run | `tests-integration/test_drill_leftovers.py::test_run_leaves_no_thread_and_no_process` |
| Shards are mapped into memory | `test_reading_maps_the_shards` |
| A slice of a corpus is a view of the file | `packages/roxxel-format/tests/test_reading.py::test_a_slice_inside_a_shard_is_a_read_only_view` |
| The bytes of a batch are found without a search through the corpus | `test_resumed_run_reads_the_tokens_of_its_step_alone` |
| A batch arrives in 0 ms | differs: `a-batch-takes-time` |
| A corpus takes no memory of Python | `test_batch_takes_the_memory_of_a_batch_whatever_the_corpus` |
| A batch takes 0 bytes of Python's memory | differs: `a-batch-is-copied-on-the-host` |
| Batches go from mapped files to the devices without a copy | differs: `a-batch-is-copied-on-the-host` |
| A process reads what its own devices hold, once | `packages/roxxel-loader/tests/test_device_stream.py::test_every_row_and_column_is_read_once` |
| Batches are placed on the mesh by their sharding | `packages/roxxel-loader/tests/test_layout.py::test_every_value_is_read_once_and_is_where_the_sharding_says` |
| Resuming computes the next step and replays nothing | `test_resumed_run_reads_the_tokens_of_its_step_alone` |
| The position in a corpus of any size is a formula | `packages/roxxel-curriculum/tests/test_curriculum.py::test_counters_hold_at_ten_to_the_fourteenth` |
| A run resumes in under 1 ms | differs: `a-run-resumes-in-seconds` |
| A process finds its own index and rows in a pod | `tests-integration/test_process_counts.py::test_processes_together_read_what_one_reads` |
| Only the first process writes and prints | `tests-integration/test_process_counts.py::test_only_the_first_process_writes_and_speaks` |
| Phases of other shapes follow each other in one run | `tests-integration/test_document_tutorial.py::test_program_trains_the_whole_schedule` |
| The update is compiled without work of the user | `test_loss_function_is_traced_and_not_called_at_every_step` |
| Constructing the trainer compiles with `nnx.jit` | differs: `the-update-is-compiled-when-the-run-starts` |
| The loss is found in a number, a tuple or a dict | `packages/roxxel-train/tests/test_step.py::test_loss_is_found_in_every_form` |
| Metrics beside the loss are kept | `test_metrics_beside_the_loss_are_logged` |
| A source that runs out is dropped, and the weights of the rest are scaled | `packages/roxxel-curriculum/tests/test_proportions.py::test_every_prefix_since_the_last_exhaustion_is_within_three_of_the_weights` |
| A run goes on when a secondary source runs out | `packages/roxxel-curriculum/tests/test_plan.py::test_the_table_has_every_source_of_every_phase_and_what_runs_out` |
| Checkpoints are written in the background | `packages/roxxel-ckpt/tests/test_background.py::test_save_returns_before_the_checkpoint_is_there` |
| Training never waits for a checkpoint | differs: `a-save-waits-for-the-save-before` |
| Log files are written by a thread | `packages/roxxel-train/tests/test_log.py::test_logger_writes_text_and_rows_and_leaves_no_thread` |
| The stack trace of a crash is in the log file before the error goes on | `test_crash_is_in_the_log_file_before_it_is_raised` |
| What was queued is on the disk after a crash | `test_crash_is_in_the_log_file_before_it_is_raised` |
"""  # noqa: E501 - a row of the table is one line

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, ModelState, Phase, Roxxel, Trainer
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is made there

PHASES = [Phase(4, 4, 9), Phase(3, 2, 17)]


def write(folder: Path) -> Roxxel:
    corpus = Roxxel(folder / "data_*.rox")
    corpus.write((np.arange(40) % 13 for _ in range(50)), vocab_size=13)
    return corpus


def mean_loss(model: Any, batch: Any) -> Any:
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def trainer(
    folder: Path, loss_fn: Callable[..., Any] = mean_loss, **options: Any
) -> Trainer:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Embed(13, 4, rngs=rngs), nnx.Linear(4, 13, rngs=rngs))
    return Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(write(folder), PHASES),
        loss_fn,
        save_path=folder / "run",
        log_every=1,
        **options,
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder / "run").rows()[0]


def child_processes() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(number) for path in lists for number in path.read_text().split()}


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


@LINUX
def test_run_starts_no_process_and_no_shared_memory(tmp_path: Path) -> None:
    before = child_processes()
    steps: list[int] = []

    def look(state: ModelState) -> None:
        steps.append(int(state.step[...]))
        assert child_processes() <= before
        assert SHARED_MEMORY not in mapped_files()

    trainer(tmp_path, eval_fn=look, eval_every=1).run()

    assert steps == [*range(1, 8)]


@LINUX
def test_reading_maps_the_shards(tmp_path: Path) -> None:
    corpus = write(tmp_path)

    corpus.read([0], 9)

    assert corpus.paths[0] in mapped_files()


def test_batch_takes_the_memory_of_a_batch_whatever_the_corpus(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "large_*.rox")
    corpus.write(np.arange(2**20) % 997 for _ in range(16))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.rox")) > 2**25
    sampler = Curriculum(corpus, [Phase(1000, 16, 1025)]).sampler(seed=0)

    tracemalloc.start()
    try:
        batch = sampler.batch(700)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert batch.nbytes == 16 * 1025 * 4
    assert peak < 10 * batch.nbytes


def test_resumed_run_reads_the_tokens_of_its_step_alone(tmp_path: Path) -> None:
    reads: list[tuple[int, int]] = []

    class Watched(Roxxel):
        def read(self, starts: Any, length: int, *args: Any, **options: Any) -> Any:
            reads.extend((int(start), length) for start in np.asarray(starts))
            return super().read(starts, length, *args, **options)

    write(tmp_path)
    curriculum = Curriculum(Watched(tmp_path / "data_*.rox"), PHASES)
    state = json.loads(json.dumps(curriculum.sampler(seed=1).state(5)))

    sampler = curriculum.sampler(state=state)
    assert reads == []
    sampler.batch(5)

    assert reads == [(int(start), 17) for start in sampler.windows(5).start]


def test_loss_function_is_traced_and_not_called_at_every_step(tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []

    def loss_fn(model: Any, batch: Any) -> Any:
        calls.append(batch.shape)
        return mean_loss(model, batch)

    one = trainer(tmp_path, loss_fn)
    traced = len(calls)
    one.run()

    assert set(calls) == {(4, 9), (2, 17)}
    assert len(calls) == traced


@pytest.mark.parametrize(
    "pack",
    [
        lambda loss, accuracy: (loss, {"accuracy": accuracy}),
        lambda loss, accuracy: {"loss": loss, "accuracy": accuracy},
    ],
    ids=["tuple", "dict"],
)
def test_metrics_beside_the_loss_are_logged(
    tmp_path: Path, pack: Callable[[Any, Any], Any]
) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        is_right = model(batch[:, :-1]).argmax(-1) == batch[:, 1:]
        return pack(mean_loss(model, batch), is_right.mean())

    trainer(tmp_path, loss_fn).run()

    rows = [row for row in metrics(tmp_path) if row["kind"] == "train"]
    assert len(rows) == 7
    assert all(0 <= row["accuracy"] <= 1 < row["loss"] for row in rows)


def test_crash_is_in_the_log_file_before_it_is_raised(tmp_path: Path) -> None:
    def crash(state: ModelState) -> None:
        if int(state.step[...]) == 5:
            raise MemoryError("the evaluation needs more than there is")

    one = trainer(tmp_path, eval_fn=crash, eval_every=1)
    with pytest.raises(MemoryError):
        one.run()

    text = (tmp_path / "run" / "system.log").read_text()
    assert "Traceback" in text
    assert "in crash" in text
    assert "MemoryError: the evaluation needs more than there is" in text
    steps = [row["step"] for row in metrics(tmp_path) if row["kind"] == "train"]
    assert steps == [*range(1, 6)]
