"""The benchmark of one GPU runs at a tiny size; failures and hangs are records."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jax.profiler import ProfileData

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("accelerator.py")
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


NAMES = (
    *("device", "attention", "throughput", "resume", "save", "phase-change"),
    *("larger", "long"),
)


@pytest.fixture
def program() -> Iterator[ModuleType]:
    """The module `_accelerator_program`, imported by its name as the scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROGRAM.parent))
        yield importlib.import_module("_accelerator_program")


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the stages of the result, and what was printed."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--dry", "--out", str(out), *arguments],
        env={**os.environ, "XLA_FLAGS": QUICK_COMPILATION},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    result = json.loads((out / "result.json").read_text())
    return done.returncode, result["stages"], done.stdout + done.stderr


def test_every_stage_measures(tmp_path: Path) -> None:
    code, stages, said = run(tmp_path)

    assert code == 0, said + (tmp_path / "stages.log").read_text()
    assert tuple(stages) == NAMES
    assert stages["device"]["peak"] > 0
    assert stages["attention"]["right"] == ["xla"]
    speed = stages["throughput"]
    assert len(speed["ratios"]) == 5
    assert 0 <= speed["wait_share"] <= 1
    assert speed["flops_per_token"] == 6 * speed["parameters"]
    assert speed["mfu"] is None  # a CPU has no known peak
    for first, last in speed["losses"].values():
        assert last < first
    assert not [name for name, one in speed["variants"].items() if "failed" in one]
    resume = stages["resume"]
    assert 0 < resume["resumed_from"] < resume["steps"]
    assert resume["identical"]
    assert stages["save"]["restored_from"] == stages["save"]["total_steps"]
    assert stages["phase-change"]["change_ratio"] > 0
    assert stages["larger"]["mfu_tokens_per_s"] > 0
    assert "losses after kill -9 bit-identical: yes" in said


def test_a_failure_in_each_stage_is_a_record_and_the_exit_code(tmp_path: Path) -> None:
    code, stages, said = run(tmp_path, "--inject", *NAMES)

    assert code == 1
    for name in NAMES:
        assert "--inject" in stages[name]["failed"]
        assert f"{name}: FAILED" in said


def test_a_stage_that_hangs_is_killed_at_its_share(tmp_path: Path) -> None:
    chosen = ("--stages", "device", "attention", "--budget-s", "40")
    code, stages, _ = run(
        tmp_path, *chosen, "--hang", "device", "--inject", "attention"
    )

    assert code == 1
    assert "was killed after" in stages["device"]["failed"]
    assert "--inject" in stages["attention"]["failed"]


def test_kernels_of_all_streams_make_a_step(program: ModuleType) -> None:
    found = program.kernels_of(_profile(GPU_TRACE), steps=2)

    # 10 to 20 and 15 to 25 us overlap; a copy lasts from 28 to 38, the last from 40.
    assert found["kernel_ms"] == pytest.approx(35e-3 / 2)
    assert found["idle_ms"] == pytest.approx(5e-3 / 2)
    assert found["slowest"][0] == ["fusion_7", 0.015, 1.5]


def test_trace_without_kernels_names_what_it_holds(program: ModuleType) -> None:
    profile = _profile('planes { name: "Task Environment" }')

    assert "Task Environment" in program.kernels_of(profile, 1)["failed"]


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
