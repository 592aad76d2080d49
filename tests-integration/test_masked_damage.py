"""A damaged block that one of two real processes reads, or that a bucket holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import forked
import numpy as np
import pytest
from roxxel import Roxxel, open_run
from roxxel_train.audit import audit

from .buckets import running_bucket
from .conftest import PROGRAMS, SEVERAL_PROCESSES, environment
from .programs.damaged import curriculum_of
from .runs import free_port, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

BLOCK = 512
FIELDS = ("tokens", "loss_mask")


def write(folder: Path) -> Roxxel:
    random = np.random.default_rng(0)
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(
        (random.integers(1, 64, 40) for _ in range(300)),
        vocab_size=64,
        block_size=BLOCK,
    )
    return Roxxel(folder / "web_*.rox")


def flip(corpus: Roxxel, block: int) -> None:
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096 + block * BLOCK + 7] ^= 1
    path.write_bytes(data)


def block_of_one_process(corpus: Roxxel, process: int) -> tuple[int, int, str]:
    """Return a block that only rows of one of two processes read first.

    The result is its number, the step that reads it, and its tokens.
    """
    sampler = curriculum_of(corpus).sampler(0)
    size = BLOCK // corpus.dtype.itemsize
    for block in range(corpus.num_tokens // size):
        found = list(sampler.where("self", block * size, (block + 1) * size))
        first = found[0].step if found else 0
        batch_size, _ = sampler.shape(first)
        halves = {2 * each.row // batch_size for each in found if each.step == first}
        if first > 3 and halves == {process}:
            return block, first, f"tokens:[{block * size},{(block + 1) * size})"
    raise AssertionError("every block is read by both processes")


def train(
    copies: Sequence[Path], run: Path, cache: Path, *tokens: str, code: int = 0
) -> list[str]:
    """Train in a process for each copy, and return what each has printed."""
    count = len(copies)
    shared = {
        **environment(2 // count, cache),
        "JAX_NUM_PROCESSES": str(count),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    names = ",".join(map(str, copies))
    command = [sys.executable, str(PROGRAMS / "damaged.py"), names, str(run), *tokens]
    processes = [
        forked.Popen(
            command,
            env={**shared, "JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        texts = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [code] * count, texts
    return texts


def test_a_block_that_one_process_finds_stops_both_and_then_neither(
    tmp_path: Path, compilation_cache: Path
) -> None:
    """Both processes leave the block out, also the one whose copy is undamaged."""
    whole, broken, run = (tmp_path / name for name in ("whole", "broken", "run"))
    block, first, tokens = block_of_one_process(write(whole), 1)
    shutil.copytree(whole, broken)
    flip(Roxxel(broken / "web_*.rox"), block)

    texts = train([whole, broken], run, compilation_cache, code=1)
    assert f'without={{"self": ["{tokens}"]}}' in texts[1]
    assert tokens in (run / "system.log").read_text()
    train([whole, broken], run, compilation_cache, tokens)

    sampler = open_run(run, {"self": Roxxel(whole / "web_*.rox")}).sampler()
    (withdrawal,) = sampler.withdrawals
    assert 0 <= withdrawal.step <= first
    assert withdrawal.tokens.within(0, 2**40) == [withdrawal.tokens.bounds]
    assert audit(sampler, rows(run)).is_sound
    targets = [row["loss_weight"] for row in rows(run) if row["kind"] == "train"]
    assert targets[first] < targets[0]


def test_a_damaged_block_in_a_bucket_is_read_around(tmp_path: Path) -> None:
    block, _, tokens = block_of_one_process(write(tmp_path / "whole"), 0)
    whole = curriculum_of(Roxxel(tmp_path / "whole" / "web_*.rox"), tokens)
    sound = whole.sampler(0, fields=FIELDS)
    shutil.copytree(tmp_path / "whole", tmp_path / "data")
    flip(Roxxel(tmp_path / "data" / "web_*.rox"), block)

    with running_bucket(tmp_path):
        curriculum = curriculum_of(Roxxel("s3://data/web_*.rox"), tokens)
        sampler = curriculum.sampler(0, fields=FIELDS, check="blocks")
        sampler.will_need(0, sampler.total_steps)
        batches = [sampler.batch(step) for step in range(sampler.total_steps)]

    for step, batch in enumerate(batches):
        for name, expected in sound.batch(step).items():
            assert np.array_equal(batch[name], expected)
