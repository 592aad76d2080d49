"""A command reads each file of a run once: in a bucket, each reading is a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import forked
from roxxel.cli import main

from .helpers import run_python
from .runs import write_project

if TYPE_CHECKING:
    from pathlib import Path

COUNTED = """
import collections, contextlib, io, json, os, sys

from roxxel.cli import main

counts = collections.Counter()
here = os.getcwd() + os.sep


def count(event, arguments):
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        path = os.path.abspath(os.fspath(arguments[0]))
        if path.startswith(here) and not path.endswith((".py", ".pyc")):
            counts[path.removeprefix(here)] += 1


sys.addaudithook(count)
found = {}
for words in json.loads(sys.argv[1]):
    counts.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        main(words)
    found[words[0]] = dict(counts)
print(json.dumps(found))
"""


def test_a_command_opens_no_file_of_a_run_again_and_again(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    assert main(["train", str(config)]) == 0
    commands = [
        ["ls", "run"],
        ["report", "run", "--out", "page.html"],
        ["verify", "--data", "run"],
        ["show", "run", "--step", "1"],
        ["where", "run", "--document", "code:1"],
        ["replay", "run", "--without", "self:0", "--step", "1"],
        ["ckpt", "verify", "run/checkpoints@2"],
    ]

    words = json.dumps(commands)
    done = run_python("-c", COUNTED, words, cwd=tmp_path, run=forked.run)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {words[0] for words in commands}
    assert sum(map(len, found.values())) > 20
    for command, counts in found.items():
        for path, number in counts.items():
            # One pass over the log finds what is the result, another one reads it. The
            # head of a shard is read before the shard is mapped; verify also reads
            # its checksums.
            most = 2 if path.endswith((".jsonl", ".rox")) else 1
            # What describes an array is as small as a request, and is read where it is
            # checked and where it is used.
            is_layout = path.endswith(("zarr.json", "_METADATA"))
            is_asked = path.startswith("run/") and not is_layout
            is_corpus = path.endswith(".rox") and command != "verify"
            if is_asked or is_corpus:
                assert number <= most, (command, path, number)


def test_a_second_start_opens_each_corpus_once(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    assert main(["train", str(config)]) == 0
    words = ["train", str(config), "--set", "phases.1.steps=3"]

    given = json.dumps([words])
    done = run_python("-c", COUNTED, given, cwd=tmp_path, run=forked.run)

    assert done.returncode == 0, done.stderr
    opened = json.loads(done.stdout.splitlines()[-1])["train"]
    assert opened["code.rox"] == 1
