"""Whole programs: ended without close(), killed, and what they print."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from flax import nnx
from roxxel_ckpt import Checkpointer, CheckpointWriteError

from .helpers import checkpointer, names

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection


pytestmark = pytest.mark.first

# Ends without `close()`, and with a save in flight.
PROGRAM = """
from flax import nnx
from roxxel_ckpt import Checkpointer

checkpointer = Checkpointer("checkpoints", nnx.Linear(10, 5, rngs=nnx.Rngs(42)))
print(checkpointer.restore())
for step in range(100, 1000, 100):
    checkpointer.save(step, {"loss": 0.52})
"""

IMPORT_ALONE = """
import logging, sys, threading
import jax, flax.nnx
before = threading.active_count(), list(logging.getLogger().handlers)
import roxxel_ckpt
roxxel_ckpt.Checkpointer
assert (threading.active_count(), list(logging.getLogger().handlers)) == before
assert "orbax.checkpoint" not in sys.modules
assert not sys.modules["jax._src.xla_bridge"]._backends, "a device was touched"
"""


def run_program(
    source: str, cwd: Path, run: Callable[..., Any] = forked.run
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, as a fork or by another `run`."""
    script = cwd / "program.py"
    script.write_text(source)
    return run(
        [sys.executable, str(script)],
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_program_without_close_loses_nothing_in_silence(tmp_path: Path) -> None:
    for name in ("well", "badly"):
        (tmp_path / name).mkdir()
    alone = IMPORT_ALONE + PROGRAM + "raise KeyError"
    well = run_program(PROGRAM, tmp_path / "well")
    badly = run_program(alone, tmp_path / "badly", subprocess.run)

    assert well.stdout == badly.stdout == "0\n"
    assert (well.returncode, badly.returncode) == (0, 1)
    assert "KeyError\n" in badly.stderr
    ends = {"well": well, "badly": badly}
    for name, end in ends.items():
        newest = 900
        if "was not saved" in end.stderr:
            # No thread can be started any more when the interpreter ends.
            assert sys.version_info >= (3, 12)
            assert "step 900 was not saved" in end.stderr
            assert "use `with Checkpointer(...)` or call close()" in end.stderr
            newest = 800
        elif name == "well":
            assert end.stderr == ""
        assert checkpointer(tmp_path / name / "checkpoints").latest_step == newest


FORKING = """
import multiprocessing
from roxxel_ckpt.coordination import at_exit

at_exit(lambda: print("the program ends", flush=True))
fork = multiprocessing.get_context("fork").Process(target=lambda: None)
fork.start()
fork.join()
print("the fork has ended")
"""


def test_a_fork_of_the_program_does_not_say_that_the_program_ends(
    tmp_path: Path,
) -> None:
    """Other processes would stop waiting for a program that goes on."""
    end = run_program(FORKING, tmp_path)

    assert end.stdout.splitlines() == ["the fork has ended", "the program ends"]


# The fork server imports once; every program is then a process of its own.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [__name__, "roxxel_ckpt.checkpointer", "orbax.checkpoint", "flax.nnx"]
)


def save_until_killed(folder: Path, pipe: Connection) -> None:
    """Restore, check what was restored, and save for ever."""
    state = Numbers()
    checkpointer = Checkpointer(folder, state, max_to_keep=2)
    start = checkpointer.restore()
    assert int(state.step[...]) == start
    assert (state.data[...] == start).all()
    pipe.send(start)
    for step in range(start + 1, 10_000):
        state.step.set_value(np.int64(step))
        state.data.set_value(np.full(100_000, float(step)))
        checkpointer.save(step, {"loss": float(step % 7)}, {"step": step})
        pipe.send(step)


class Numbers(nnx.Module):
    """A state whose values follow from its step."""

    def __init__(self) -> None:
        self.step: nnx.Variable[Any] = nnx.Variable(np.int64(0))
        self.data: nnx.Variable[Any] = nnx.Variable(np.zeros(100_000))


def test_a_kill_at_any_moment_leaves_a_folder_that_restores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng, whole = random.Random(1), 0
    for _ in range(int(os.environ.get("ROXXEL_CKPT_KILLS", "3"))):
        listener, pipe = CONTEXT.Pipe(duplex=False)
        program = CONTEXT.Process(target=save_until_killed, args=(tmp_path, pipe))
        program.start()
        pipe.close()
        try:
            assert listener.recv() >= whole
            begun = [listener.recv() for _ in range(rng.randint(2, 6))]
            # The moment itself is the point, so here a clock is needed.
            program.join(rng.uniform(0, 0.2))
        finally:
            program.kill()
            program.join()
        while listener.poll():
            with contextlib.suppress(EOFError):
                begun.append(listener.recv())
                continue
            break
        # A save begins only when the one before it is whole.
        whole = begun[-1] - 1

    state = Numbers()
    with Checkpointer(tmp_path, state) as reading:
        step = reading.restore()
        assert step >= whole
        assert (state.data[...] == step).all()
        assert reading.peek() == (step, {"step": step})
        reading.save(step + 1)  # removes what the killed one left
    assert all(name.isdigit() for name in names(tmp_path)), names(tmp_path)
    assert not caplog.records


def replace_until_killed(folder: Path, moves: int) -> None:
    """Save a step, then replace the step, and die after so many renames."""
    state = Numbers()
    with Checkpointer(folder, state) as saving:
        saving.save(1, extra={"try": 1})
        saving.wait()
        rename, left = Path.rename, moves

        def rename_and_die(self: Any, target: Any) -> Any:
            nonlocal left
            moved, left = rename(self, target), left - 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return moved

        Path.rename = rename_and_die
        saving.save(1, extra={"try": 2}, force=True)


def test_a_kill_while_a_step_is_replaced_never_hides_it(tmp_path: Path) -> None:
    tries: list[int] = []
    killed = True
    while killed:
        folder = tmp_path / str(len(tries) + 1)
        program = CONTEXT.Process(
            target=replace_until_killed, args=(folder, len(tries) + 1)
        )
        program.start()
        program.join()
        killed = program.exitcode == -signal.SIGKILL
        reading = Checkpointer(folder, Numbers())

        assert reading.steps() == [1]
        found = reading.peek()
        assert reading.restore() == 1
        assert found == (1, reading.extra)
        assert reading.extra is not None
        tries.append(reading.extra["try"])
        reading.save(2)
        reading.wait()
        assert names(folder) == ["1", "2"]
    # The last program was not killed; before it, both the old and the new were found.
    assert tries == sorted(tries)
    assert set(tries[:-1]) == {1, 2}


def use_read_only(folder: Path, pipe: Connection) -> None:
    """Restore from a folder that must not be written to, then try to save there."""
    if os.geteuid() == 0:  # root may write everywhere, so become another user
        Checkpointer(folder, Numbers()).restore()
        os.setuid(65534)
    saving = Checkpointer(folder, Numbers())
    pipe.send(saving.restore())
    for path in (folder, folder / "new"):
        try:
            Checkpointer(path, Numbers()).save(2)
        except CheckpointWriteError as error:
            pipe.send(str(error))


def test_a_read_only_folder_restores_and_refuses_in_one_sentence() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Checkpointer(folder, Numbers()) as saving:
            saving.save(1)
        folder.chmod(0o555)
        listener, pipe = CONTEXT.Pipe(duplex=False)
        program = CONTEXT.Process(target=use_read_only, args=(folder, pipe))
        program.start()
        pipe.close()
        messages = [listener.recv() for _ in range(3)]
        program.join()
        folder.chmod(0o755)

        assert messages[0] == 1
        assert messages[1:] == [
            f"{path}: cannot hold checkpoints (Permission denied); give "
            "checkpoint_path a folder that this process may write to"
            for path in (folder, folder / "new")
        ]
        assert checkpointer(folder).steps() == [1]


# Orbax has a commit for JAX's arrays and one for numpy's, and each writes all of its
# arrays at the same time.
FULL_DISK = """
import resource, sys
import jax, numpy
from roxxel_ckpt import Checkpointer, CheckpointWriteError

random = numpy.random.default_rng(0)
arrays = {f"numpy{i}": random.normal(size=4096) for i in range(12)}
checkpointer = Checkpointer("checkpoints")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    checkpointer.save(1, state=arrays | {f"jax{i}": jax.numpy.asarray(array)
                                         for i, array in enumerate(arrays.values())})
    checkpointer.wait()
except CheckpointWriteError as error:
    sys.exit(str(error))
"""


def test_a_save_on_a_full_disk_prints_nothing_but_its_error(tmp_path: Path) -> None:
    ended = run_program(FULL_DISK, tmp_path)

    assert ended.returncode == 1
    [said] = ended.stderr.splitlines()
    assert "File too large" in said
    assert names(tmp_path / "checkpoints") == []
