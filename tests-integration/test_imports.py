"""What importing each package loads and does, seen in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .tools.declared import MEMBERS, declared, import_name, project

if TYPE_CHECKING:
    from pathlib import Path

# Of what the members declare, an import may load only what is listed here: loading it
# delays the start of the user's program. All packages may load `roxxel_store`.
LOADS: dict[str, set[str]] = {
    "roxxel_format": {"numpy"},
    "roxxel_prepare": {"numpy", "roxxel_format"},
    "roxxel_curriculum": {"numpy", "roxxel_format"},
    "roxxel_loader": {"numpy", "jax", "roxxel_format", "roxxel_curriculum"},
    "roxxel_ckpt": set(),
    "roxxel_train": set(),
    "roxxel": set(),
}

# JAX and Flax load these themselves.
BROUGHT = {"rich", "zstandard", "ml_dtypes", "etils", "tensorstore"}
DECLARED = {import_name(one) for each in MEMBERS for one in {each, *declared(each)}}
LIBRARIES = DECLARED - {*BROUGHT, "roxxel_store"}
STARTS = [
    start for each in MEMBERS for start in project(each).get("scripts", {}).values()
]

PROGRAM = """
import sys, threading, {name}
print(*{{module.partition(".")[0] for module in sys.modules}}, *sys.modules)
assert threading.active_count() == 1, threading.enumerate()
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program where no device can be found and each new file is seen."""
    settings = {"JAX_PLATFORMS": "nowhere", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", program],
        cwd=folder,
        env=os.environ | settings | {"XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", LOADS)
def test_import_loads_what_it_needs_and_does_nothing(name: str, tmp_path: Path) -> None:
    done = run(PROGRAM.format(name=name), tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    loaded = set(line.split())
    assert (loaded & LIBRARIES) - {name} == LOADS[name]
    assert not loaded & {"roxxel.cli", "roxxel.quickstart"}
    assert not list(tmp_path.iterdir())


def test_orbax_is_loaded_by_the_first_save_or_restore(tmp_path: Path) -> None:
    names = "from roxxel import Trainer; from roxxel_ckpt import Checkpointer"
    program = f"import sys; {names}; print(Checkpointer('run').steps(), *sys.modules)"

    done = run(program, tmp_path)

    assert done.stdout.startswith("[] "), done.stderr
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert "roxxel_ckpt" in loaded
    assert not loaded & {"orbax", "tensorstore"}


def test_a_device_would_have_been_seen(tmp_path: Path) -> None:
    done = run("import jax; jax.devices()", tmp_path)

    assert done.returncode == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("start", STARTS)
def test_a_program_waits_for_ctrl_c_before_it_imports_what_is_slow(
    start: str, tmp_path: Path
) -> None:
    module, _, function = start.partition(":")
    done = run(f"{PROGRAM.format(name=module)}\n{module}.{function}", tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert not set(done.stdout.split()) & (LIBRARIES - {"roxxel"})
