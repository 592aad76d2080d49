"""The pre-training benchmark runs at a tiny size, and its records obey their laws."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jax.profiler import ProfileData

from ._timeline import merged, timeline_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
PRETRAIN = HERE / "pretrain.py"

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(scope="module")
def module() -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the benchmark as the scripts do, by its name alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield importlib.import_module


@pytest.fixture(scope="module")
def job(
    module: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A job of the tiny size; its programs are compiled once for all tests."""
    folder = tmp_path_factory.mktemp("pretrain")
    return module("_pretraining").Job("tiny", folder, seconds=0.5)


def test_trainer_and_hand_written_loop_train_in_turn(
    module: Callable[[str], ModuleType], job: Any
) -> None:
    record = module("_stage_throughput").throughput(job)

    assert len(record["ratios"]) == record["rounds"] == 5
    assert all(ratio > 0 for ratio in record["ratios"])
    assert 0 <= record["wait_share"] <= 1
    for prefix in ("", "by_hand_"):
        assert record[f"{prefix}first_loss"] == pytest.approx(math.log(256), abs=0.1)
        assert record[f"{prefix}last_loss"] < record[f"{prefix}first_loss"]
    assert record["flops_per_token"] == 6 * record["parameters"]
    assert record["mfu"] is None  # a CPU has no known peak


def test_timeline_tells_phase_change_and_save(
    module: Callable[[str], ModuleType], job: Any
) -> None:
    record = module("_stage_phase_change").phase_change(job)

    assert set(record["windows"]) == {"steady", "phase_change", "save"}
    for window in record["windows"].values():
        assert 0 <= window["idle_share"] < 1
        assert 0 <= window["longest_gap_s"] <= window["idle_s"] <= window["seconds"]
    assert len(record["change_steps_s"]) == 3
    assert record["change_ratio"] * record["usual_step_s"] == pytest.approx(
        max(record["change_steps_s"])
    )
    assert len(record["save_cost_s"]) == 2
    assert min(record["copy_to_host_s"]) > 0


def test_busy_and_idle_device_compile_programs_to_compare(
    module: Callable[[str], ModuleType], job: Any
) -> None:
    stage, parts = module("_stage_compile"), module("_pretrain_parts")

    idle, busy = stage.compile_idle(job), stage.compile_busy(job)
    record = parts.compare_programs(job.folder, job.folder, idle, busy)

    assert busy["updates_meanwhile"] > 0
    assert idle["hlo_lines"] > 100
    assert record["same_program"] == (record["differing_lines"] == 0)
    assert record["same_program"]
    assert record["same_results"]


def test_normalised_program_keeps_kernels_and_drops_names(
    module: Callable[[str], ModuleType],
) -> None:
    normalised = module("_stage_compile").normalised
    parts = module("_pretrain_parts")
    text = (
        "HloModule jit_update, entry_computation_layout={{()}}\n\n"
        "ENTRY %main.4 (p.1: f32[8]) -> f32[8] {{\n"
        "  %p.{0} = f32[8]{{0}} parameter(0)\n"
        '  ROOT %dot.{1} = f32[8]{{0}} fusion(%p.{0}), metadata={{op_name="{2}"}}, '
        'backend_config={{"tile":{3}}}\n'
        "}}\n"
    )
    one, renamed, other = (
        normalised(text.format(*values))
        for values in ((1, 2, "a", 64), (7, 9, "b", 64), (1, 2, "a", 128))
    )

    assert one == renamed
    differing = parts.program_lines(one) - parts.program_lines(other)
    assert [parts.operation(line) for line in differing] == ["fusion"]


def test_killed_runs_resume_and_are_reported(tmp_path: Path) -> None:
    out = tmp_path / "records.json"
    arguments = ["--sizes", "tiny", "--part", "resume", "memory", "--out", str(out)]
    arguments += ["--resume-variants", "deterministic", "--scratch", str(tmp_path)]
    done = _pretrain(*arguments)

    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    records = {record["part"]: record for record in found["records"]}
    resume = records["resume"]["deterministic"]
    assert 0 < resume["resumed_from"] < 10
    assert resume["resumed_from"] + resume["later_steps"] == resume["steps"] == 16
    assert resume["repeated_identical"]
    assert resume["resumed_identical"]
    assert resume["first_difference"] is None
    assert resume["largest_difference"] == 0
    assert resume["losses"][-1] < resume["losses"][0]
    memory = records["memory"]
    assert memory["trains"]
    assert memory["resumes"]
    assert memory["state_bytes"] == pytest.approx(
        0.6 * memory["device_limit_bytes"], rel=0.01
    )
    for name in ("memory_while_training", "memory_at_resume"):
        assert memory[name]["peak_bytes_in_use"] >= memory["state_bytes"]
    assert not list(tmp_path.glob("tmp*"))

    report = _pretrain("--report", str(out))
    assert report.stdout == done.stdout
    assert "| losses after kill -9 bit-identical, deterministic flags | yes |" in (
        report.stdout
    )
    assert "| waiting for data under 0.5 % | not measured |" in report.stdout


def test_stage_that_fails_is_a_record_and_the_exit_code(tmp_path: Path) -> None:
    out = tmp_path / "records.json"

    arguments = ["--sizes", "tiny", "--part", "throughput", "compile"]
    done = _pretrain(*arguments, "--limit-s", "0.01", "--out", str(out))

    assert done.returncode == 1, done.stderr
    records = json.loads(out.read_text())["records"]
    assert [record["part"] for record in records] == ["throughput", "compile"]
    assert all("took more than 0.01 s" in record["failed"] for record in records)
    assert "- compile, tiny: compile_idle took more than 0.01 s" in done.stdout
    assert "| waiting for data under 0.5 % | **failed** |" in done.stdout


def test_device_that_fails_is_not_taken_for_a_cpu() -> None:
    done = _pretrain("--part", "throughput", "--limit-s", "0.01")

    assert done.returncode == 1
    assert "no device to measure: device took more than 0.01 s" in done.stderr


def test_report_prefers_no_success_of_a_file_before(
    module: Callable[[str], ModuleType],
) -> None:
    report = module("_pretrain_report")
    base = {"part": "resume", "size": "tiny"}
    good = {**base, "deterministic": {"resumed_identical": True}}
    bad = {**base, "deterministic": {"failed": "resume ended with 1: no memory"}}
    goal = next(goal for goal in report.GOALS if goal.part == "resume")

    assert report._verdict(goal, [bad, good], "tiny") == "yes"
    assert report._verdict(goal, [good, bad], "tiny") == "**failed**"
    assert report._verdict(goal, [good], "124m") == "not measured"
    assert report.failures([good, bad]) == [
        "resume, tiny: deterministic: resume ended with 1: no memory"
    ]


@pytest.mark.parametrize(
    ("value", "fields", "shown"),
    [
        ("the loss of both loops falls", {"last_loss": 5.0}, "yes"),
        ("the loss of both loops falls", {"last_loss": 7.0}, "**no**"),
        ("the loss of both loops falls", {"last_loss": math.nan}, "**no**"),
        ("a program compiled on a busy", {"updates_meanwhile": 3}, "yes"),
        ("a program compiled on a busy", {"updates_meanwhile": 0}, "not measured"),
    ],
)
def test_goal_holds_only_for_what_was_measured(
    module: Callable[[str], ModuleType],
    value: str,
    fields: dict[str, Any],
    shown: str,
) -> None:
    report = module("_pretrain_report")
    [goal] = [goal for goal in report.GOALS if goal.text.startswith(value)]
    record = {
        "part": goal.part,
        "size": "tiny",
        "first_loss": 6.0,
        "by_hand_first_loss": 6.0,
        "by_hand_last_loss": 5.0,
        "same_program": True,
        **fields,
    }

    assert report._verdict(goal, [record], "tiny") == shown


@pytest.mark.parametrize(
    ("resumed_from", "logged", "failure"),
    [
        (4, 8, None),
        (0, 8, "resume began at step 0 of 8"),
        (8, 8, "resume began at step 8 of 8"),
        (4, 7, r"steps that only one of the runs logged: \[8\]"),
    ],
)
def test_resume_that_shows_nothing_is_a_failure(
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    resumed_from: int,
    logged: int,
    failure: str | None,
) -> None:
    class Staged:
        variants = ("deterministic",)

        def stage(self, _stage: str, _size: str, folder: Path, **_: Any) -> Any:
            for run, steps in (("unbroken", 8), ("killed", logged)):
                (folder / run).mkdir(parents=True, exist_ok=True)
                rows = [
                    {"kind": "train", "step": step, "step_s": 1.0}
                    | {"loss": 1 / step, "grad_norm": 1.0, "tokens": step}
                    for step in range(1, steps + 1)
                ]
                text = "\n".join(map(json.dumps, rows))
                (folder / run / "metrics.jsonl").write_text(text)
            names = ("platform", "device_kind", "jax", "xla_flags")
            return {**dict.fromkeys(names, ""), "resumed_from": resumed_from}

    found = module("_pretrain_parts").resume(Staged(), "tiny", tmp_path)
    record = found["deterministic"]

    if failure is None:
        assert record["resumed_identical"]
        assert "failed" not in record
    else:
        assert re.search(failure, record["failed"])
        assert "resumed_identical" not in record


def test_loss_and_its_gradient_are_those_of_optax(
    module: Callable[[str], ModuleType],
) -> None:
    import jax
    import optax

    decoder = module("_decoder")
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, 5, 17)).astype(np.float32)
    targets = random.integers(0, 17, (3, 5))

    def ours(x: jax.Array) -> jax.Array:
        return decoder.cross_entropy(x, targets).mean()

    def theirs(x: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(x, targets)
        return losses.mean()

    one, other = (jax.jit(jax.value_and_grad(loss))(logits) for loss in (ours, theirs))
    assert one[0] == pytest.approx(float(other[0]), rel=1e-6)
    np.testing.assert_allclose(one[1], other[1], atol=1e-7)


def test_overlapping_spans_are_joined() -> None:
    assert merged([(3, 4), (0, 1), (0.5, 2), (2, 2.5)]) == ((0, 2.5), (3, 4))


def test_gaps_between_kernels_of_all_streams_are_idle() -> None:
    timeline = timeline_of(_profile(GPU_TRACE))

    assert timeline.plane == "/device:GPU:0"
    # Kernels at 10 to 20 and 15 to 25 us overlap; a copy fills the gap to 40 us.
    record = timeline.record()
    assert record["num_kernel_spans"] == 2
    assert record["seconds"] == pytest.approx(40e-6)
    assert record["idle_s"] == pytest.approx(15e-6)
    assert record["longest_gap_s"] == pytest.approx(15e-6)
    assert record["idle_share"] == pytest.approx(15 / 40)
    assert record["copying_s"] == pytest.approx(10e-6)


def test_trace_without_kernels_names_what_it_holds() -> None:
    with pytest.raises(RuntimeError, match="Task Environment"):
        timeline_of(_profile('planes { name: "Task Environment" }'))


GPU_TRACE = """
planes {
  name: "/device:GPU:0"
  event_metadata { key: 1 value { id: 1 name: "fusion_7" } }
  event_metadata { key: 2 value { id: 2 name: "MemcpyD2H" } }
  event_metadata { key: 3 value { id: 3 name: "jit_update" } }
  lines {
    id: 1 name: "Stream #13(Compute)"
    events { metadata_id: 1 offset_ps: 10000000 duration_ps: 10000000 }
    events { metadata_id: 1 offset_ps: 40000000 duration_ps: 10000000 }
  }
  lines {
    id: 2 name: "Stream #14(Compute,MemcpyD2H)"
    events { metadata_id: 1 offset_ps: 15000000 duration_ps: 10000000 }
    events { metadata_id: 2 offset_ps: 28000000 duration_ps: 10000000 }
  }
  lines {
    id: 3 name: "XLA Modules"
    events { metadata_id: 3 offset_ps: 0 duration_ps: 90000000 }
  }
}
planes { name: "/host:CPU" }
"""


def _profile(text: str) -> Any:
    serialized = ProfileData.text_proto_to_serialized_xspace(text)
    return ProfileData.from_serialized_xspace(serialized)


def _pretrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PRETRAIN), *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_COMPILATION},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
