"""A call of the operating system that fails loses no step and no row of a run.

The suite lets a few calls fail. For all of them, with every error::

    ROXXEL_DISK_FAULTS=all pytest packages/roxxel-train/tests/test_disk_faults.py
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from roxxel_curriculum import Phase
from roxxel_train import Preempted, Trainer

from .disk_faults import Disk
from .helpers import rows, trainer, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roxxel_train import ModelState

NUMBERS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.ENOMEM)
NUM_FAULTS = os.environ.get("ROXXEL_DISK_FAULTS", "3")
PHASES = [Phase(8, 4, 9)]


def make(folder: Path, *, stops_at: int = 0) -> Trainer:
    """Return a trainer that evaluates, logs every step, and saves every second."""

    def evaluate(state: ModelState) -> dict[str, float]:
        step = int(state.step[...])
        if step == stops_at:
            one.save()
            raise Preempted(step, "SIGTERM")
        return {"held_out": step / 2}

    one = trainer(
        folder,
        PHASES,
        log_every=1,
        checkpoint_every=2,
        eval_fn=evaluate,
        eval_every=3,
        max_to_keep=2,
    )
    return one


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that stopped after step 4, of 8."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.raises(Preempted):
        make(folder, stops_at=6).run()
    assert Checks.steps(folder) == {2, 4}
    shutil.copytree(folder / "run", folder / "template")
    return folder


class Checks:
    """What must hold after a failed call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.again()
        one = make(folder)
        one.run()
        self.rows, self.values = rows(folder), values(one)

    @staticmethod
    def steps(folder: Path) -> set[int]:
        names = {path.name for path in (folder / "run" / "checkpoints").iterdir()}
        assert "abandoned" not in names
        return {int(name) for name in names if name.isdecimal()}

    def again(self) -> None:
        """Put the run back to where it stopped."""
        shutil.rmtree(self.folder / "run")
        shutil.copytree(self.folder / "template", self.folder / "run")

    def num_calls(self) -> int:
        self.again()
        with Disk(self.folder / "run").injected() as disk:
            make(self.folder).run()
        return disk.num_calls

    def check(self, fails_at: int, number: int) -> None:
        self.again()
        disk = Disk(self.folder / "run", fails_at, number)
        told = ""
        try:
            with disk.injected():
                make(self.folder).run()
        except Exception as error:  # noqa: BLE001 - any error may tell the reason
            told = "\n".join(self._texts(error))
            # Orbax reports a file that it may not look at as absent, by its path.
            assert disk.failed is not None
            assert os.strerror(number) in told or disk.failed[1] in told, disk.failed
            assert str(self.folder / "run") in told, disk.failed
        assert max(self.steps(self.folder)) >= 4, disk.failed

        one = make(self.folder)
        one.run()

        where = f"{disk.failed} with {errno.errorcode[number]}: {told}"
        assert rows(self.folder) == self.rows, where
        assert values(one) == self.values, where
        assert max(self.steps(self.folder)) == 8, where

    def _texts(self, error: BaseException | None) -> Iterator[str]:
        while error is not None:
            yield str(error)
            yield from getattr(error, "__notes__", ())
            error = error.__cause__ or error.__context__


def test_a_call_that_fails_loses_no_step_and_no_row(begun: Path) -> None:
    checks = Checks(begun)
    num_calls = checks.num_calls()
    cases: list[tuple[int, int]] = [
        (call, number) for call in range(1, num_calls + 1) for number in NUMBERS
    ]
    if NUM_FAULTS != "all":
        # A step that shares no factor with the number of errors meets all of them.
        every = max(1, len(cases) // int(NUM_FAULTS)) | 1
        cases = cases[every // 2 :: every]
    assert num_calls > 100
    failures: list[str] = []
    for call, number in cases:
        try:
            checks.check(call, number)
        except Exception as error:  # noqa: BLE001 - all of them are shown at the end
            failures.append(f"{call}: {type(error).__name__}: {error}")
    assert not failures, "\n\n".join([f"{len(failures)} of {len(cases)}", *failures])
