"""A forked child uses datasets, whatever other threads of its parent did at the fork.

Each child sets an alarm, which ends it if it waits for what will never happen.
"""

from __future__ import annotations

import subprocess
import sys

FORK = """
import os, signal, sys, threading
from roxxel_loader import Dataloader, FilteredDataset, SimpleDataset

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        work()
        os._exit(0)
    end = os.waitpid(child, 0)[1]
    sys.stderr.write(f"the child ended with {end}" if end else "")
"""

WHILE_A_THREAD_FILTERS = """
filtering, go_on = threading.Event(), threading.Event()

def is_even(item):
    if threading.current_thread() is thread:
        filtering.set()
        go_on.wait()
    return item % 2 == 0

def work():
    assert list(dataset) == [0, 2, 4, 6, 8]

dataset = FilteredDataset(SimpleDataset(range(10)), is_even)
thread = threading.Thread(target=lambda: len(dataset))
thread.start()
assert filtering.wait(600)
in_child(work)
go_on.set()
thread.join()
"""

WHILE_A_THREAD_TAKES_A_BATCH = """
from roxxel_loader import MappedDataset

taking, go_on = threading.Event(), threading.Event()

def wait(item):
    if threading.current_thread() is thread:
        taking.set()
        go_on.wait()
    return item

def work():
    assert next(batches) == [0]

batches = iter(Dataloader(MappedDataset(range(10), wait), 1, workers=0))
thread = threading.Thread(target=lambda: next(batches))
thread.start()
assert taking.wait(600)
in_child(work)
go_on.set()
thread.join()
"""

WHILE_AN_ITERATION_IS_IN_PROGRESS = """
def work():
    try:
        for batch in batches:
            pass
    except RuntimeError as error:
        print(error)
    batches.close()

batches = iter(Dataloader(SimpleDataset(range(1000)), 2, workers=1, prefetch=1))
print(next(batches))
sys.stdout.flush()
in_child(lambda: (work(), sys.stdout.flush()))
print(next(batches))
batches.close()
"""


def outcome_of(code: str) -> str:
    """Return what a program prints, which must end well."""
    parent = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (parent.returncode, parent.stderr) == (0, "")
    return parent.stdout


def test_a_child_filters_that_was_forked_while_another_thread_filtered() -> None:
    assert outcome_of(WHILE_A_THREAD_FILTERS) == ""


def test_a_child_takes_batches_that_was_forked_while_another_thread_did() -> None:
    assert outcome_of(WHILE_A_THREAD_TAKES_A_BATCH) == ""


def test_a_child_cannot_continue_an_iteration_of_its_parent() -> None:
    assert outcome_of(WHILE_AN_ITERATION_IS_IN_PROGRESS) == (
        "[0 1]\n"
        "this iteration belongs to the parent process: a forked child does not have "
        "the threads that make the batches; start a new iteration in this process\n"
        "[2 3]\n"
    )
