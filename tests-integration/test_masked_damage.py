"""A damaged block that one of two real processes reads is masked in both."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import ChecksumError, Roxxel, open_run
from roxxel_train.audit import audit

from .buckets import running_bucket
from .conftest import PROGRAMS, SEVERAL_PROCESSES, environment
from .programs.damaged import curriculum_of
from .runs import free_port, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel import DamagedBlock

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

BLOCK = 512
STEPS = 12
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


def blocks_of_one_process(corpus: Roxxel, process: int) -> dict[int, int]:
    """Return blocks that only rows of one of two processes read first, by step.

    The other process reads them later.
    """
    sampler = curriculum_of(corpus, STEPS).sampler(0)
    size = BLOCK // corpus.dtype.itemsize
    chosen: dict[int, int] = {}
    for block in range(corpus.num_tokens // size):
        found = list(sampler.where("self", block * size, (block + 1) * size))
        halves = [
            (each.step, 2 * each.row // sampler.shape(each.step)[0]) for each in found
        ]
        if not halves:
            continue
        first = halves[0][0]
        here = {half for step, half in halves if step == first}
        if here == {process} and (1 - process) in {half for _, half in halves}:
            chosen[block] = first
    return dict(sorted(chosen.items(), key=lambda item: item[1]))


def train(
    copies: Sequence[Path],
    run: Path,
    cache: Path,
    count: int,
    steps: int = STEPS,
    *stop: int,
    code: int = 0,
) -> None:
    """Train in so many processes, of two devices together."""
    shared = {
        **environment(2 // count, cache),
        "JAX_NUM_PROCESSES": str(count),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    names = ",".join(map(str, copies))
    command = [sys.executable, str(PROGRAMS / "damaged.py"), names, str(run)]
    processes = [
        subprocess.Popen(
            [*command, *map(str, (steps, *stop))],
            env={**shared, "JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        texts = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [code] * count, texts


def fed(run: Path) -> list[Any]:
    return [row["digest"] for row in rows(run) if row["kind"] == "train"]


def masked(run: Path) -> tuple[DamagedBlock, ...]:
    return open_run(run).sampler(["loss_mask"]).damaged


@pytest.mark.parametrize("process", [0, 1])
def test_both_processes_mask_what_one_finds(
    tmp_path: Path, compilation_cache: Path, process: int
) -> None:
    """The other process has an undamaged copy, and reads the block later."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    chosen = blocks_of_one_process(write(whole), process)
    early = [block for block, step in chosen.items() if step]
    assert early
    shutil.copytree(whole, broken)
    flip(Roxxel(broken / "web_*.rox"), early[0])
    copies = [broken, whole] if process == 0 else [whole, broken]
    run = tmp_path / "run"

    train(copies, run, compilation_cache, 2)

    (block,) = masked(run)
    assert (block.block, block.step) == (early[0], chosen[early[0]])
    sampler = open_run(run, {"self": Roxxel(whole / "web_*.rox")}).sampler()
    assert audit(sampler, rows(run)).is_sound
    log = (run / "system.log").read_text()
    assert log.count(f"step {block.step}: masks damaged block") == 1
    # One process that reads the damaged copy is fed the same.
    train([broken], tmp_path / "alone", compilation_cache, 1)
    assert masked(tmp_path / "alone") == (block,)
    assert fed(tmp_path / "alone") == fed(run)


def test_a_damaged_block_in_a_bucket_is_read_around(tmp_path: Path) -> None:
    """Windows that were requested before the damage was known do no harm."""
    write(tmp_path / "whole")
    whole = curriculum_of(Roxxel(tmp_path / "whole" / "web_*.rox"), STEPS)
    sound = whole.sampler(0, fields=FIELDS)
    shutil.copytree(tmp_path / "whole", tmp_path / "data")
    local = Roxxel(tmp_path / "data" / "web_*.rox")
    firsts = blocks_of_one_process(local, 0)
    *_, damaged = firsts
    flip(local, damaged)

    with running_bucket(tmp_path):
        curriculum = curriculum_of(Roxxel("s3://data/web_*.rox"), STEPS)
        sampler = curriculum.sampler(0, fields=FIELDS, check="blocks")
        sampler.will_need(0, STEPS)
        with pytest.raises(ChecksumError) as caught:
            sampler.batch(firsts[damaged])
        masking = sampler.with_damaged(sampler.damaged_by(caught.value, range(STEPS)))
        masking.will_need(0, STEPS)
        batches = [masking.batch(step) for step in range(STEPS)]

    (block,) = masking.damaged
    assert (block.block, block.step) == (damaged, firsts[damaged])
    expected = [sound.with_damaged([block]).batch(step) for step in range(STEPS)]
    for batch, other in zip(batches, expected, strict=True):
        assert np.array_equal(batch["tokens"], other["tokens"])
        assert np.array_equal(batch["loss_mask"], other["loss_mask"])


def test_a_run_that_agrees_on_damage_stops_on_a_signal(
    tmp_path: Path, compilation_cache: Path
) -> None:
    """No process waits for what the other finds in steps that are never trained."""
    corpus = write(tmp_path / "web")
    damaged = [
        block for block, step in blocks_of_one_process(corpus, 1).items() if step
    ]
    for block in damaged[:2]:
        flip(corpus, block)
    copies, run = [tmp_path / "web"], tmp_path / "run"

    train(copies, run, compilation_cache, 2, STEPS, 3, code=75)
    train(copies, run, compilation_cache, 2)

    train(copies, tmp_path / "whole", compilation_cache, 2)
    assert masked(run) == masked(tmp_path / "whole")
    assert len(masked(run)) == 2
    assert fed(run) == fed(tmp_path / "whole")


def test_a_run_resumes_on_another_number_of_processes_after_a_repair(
    tmp_path: Path, compilation_cache: Path
) -> None:
    corpus = write(tmp_path / "web")
    shutil.copytree(tmp_path / "web", tmp_path / "sound")
    chosen = blocks_of_one_process(corpus, 1)
    damaged = [block for block, step in chosen.items() if step < 6][-1]
    flip(corpus, damaged)
    train([tmp_path / "web"], tmp_path / "at-once", compilation_cache, 2)

    train([tmp_path / "web"], tmp_path / "run", compilation_cache, 2, steps=6)
    shard = Path(corpus.paths[0])
    subprocess.run(
        [
            *(sys.executable, "-m", "roxxel_format", "repair", str(shard)),
            *("--from", str(tmp_path / "sound" / shard.name)),
        ],
        check=True,
        capture_output=True,
    )
    assert Roxxel(tmp_path / "web" / "web_*.rox").verify().ok
    train([tmp_path / "web"], tmp_path / "run", compilation_cache, 1)

    assert [block.block for block in masked(tmp_path / "run")] == [damaged]
    assert masked(tmp_path / "run") == masked(tmp_path / "at-once")
    assert fed(tmp_path / "run") == fed(tmp_path / "at-once")
