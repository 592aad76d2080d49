"""A forked child reads, whatever the other threads of its parent did at the fork.

Each child sets an alarm, which ends it if it waits for a lock that nobody will release.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from .helpers import corpus_of, documents_of

if TYPE_CHECKING:
    from pathlib import Path

FORK = """
import os, signal, sys, threading
from roxxel_format import Roxxel
from roxxel_format._read import files

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]

folder = sys.argv[1]
"""

WHILE_A_THREAD_READS = """
read = {
    "tokens": lambda each: each.read(range(0, 13_000, 900), 100),
    "column": lambda each: each.column("mask").read(range(0, 13_000, 900), 100),
}[sys.argv[2]]
files._MOST_MAPS = 2
corpus = Roxxel(folder)
stop, begun = threading.Event(), threading.Event()

def read_on():
    while not stop.is_set():
        read(corpus)
        begun.set()

thread = threading.Thread(target=read_on)
thread.start()
begun.wait()
ends = [in_child(lambda: read(corpus)) for _ in range(20)]
stop.set()
thread.join()
sys.exit(f"children ended with {ends}" if any(ends) else 0)
"""

WHILE_A_THREAD_OPENS = """
corpus = Roxxel(folder)
opening, go_on = threading.Event(), threading.Event()

def hold(event, arguments):
    is_opening = event == "open" and str(arguments[0]).endswith("manifest.json")
    if is_opening and threading.current_thread() is thread:
        opening.set()
        go_on.wait()

def work():
    assert corpus.num_tokens == 13_500

thread = threading.Thread(target=lambda: corpus.num_tokens)
sys.addaudithook(hold)
thread.start()
assert opening.wait(600), "the manifest was not opened"
end = in_child(work)
go_on.set()
thread.join()
sys.exit(f"the child ended with {end}" if end else 0)
"""


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (WHILE_A_THREAD_READS, "tokens"),
        (WHILE_A_THREAD_READS, "column"),
        (WHILE_A_THREAD_OPENS, "opening"),
    ],
)
def test_a_child_reads_that_was_forked_while_another_thread_used_the_corpus(
    code: str, what: str, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[900] * 15), max_shard_bytes=9000)
    corpus.write_column("mask", np.zeros(13_500, np.uint8))
    assert corpus.num_shards == 15

    parent = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK + code, str(tmp_path), what],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (parent.returncode, parent.stderr) == (0, "")
