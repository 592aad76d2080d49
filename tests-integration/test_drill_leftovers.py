"""After any end of a run, no thread and no process of the run remains."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from roxxel_train import Preempted

from .programs import drill

pytestmark = pytest.mark.first


def child_processes() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(number) for path in lists for number in path.read_text().split()}


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux does")
@pytest.mark.parametrize(
    ("accident", "error"),
    [(None, None), ("OSError@13.3", OSError), ("SIGTERM@13.3", Preempted)],
)
def test_run_leaves_no_thread_and_no_process(
    tmp_path: Path, accident: str | None, error: type[BaseException] | None
) -> None:
    drill.write(tmp_path / "data")
    threads, processes = set(threading.enumerate()), child_processes()

    if error is None:
        drill.train(tmp_path / "data", tmp_path / "run", {"phases"})
    else:
        with pytest.raises(error):
            drill.train(tmp_path / "data", tmp_path / "run", {"phases", str(accident)})

    assert set(threading.enumerate()) <= threads
    assert child_processes() <= processes
