"""What the commands say of a damaged block, and of a run that leaves it out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from roxxel import Roxxel, open_run
from roxxel.cli import main

from .runs import llama_config, said

TRAINER = """\
fields = ["tokens", "segment_ids", "loss_mask"]
check = "blocks"
"""
TOKENS = "tokens:[256,512)"
"""The tokens of block 1, of two bytes each."""


def config_of(folder: Path, steps: int, end: str = "") -> Path:
    return llama_config(folder, steps, TRAINER + end)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run that stopped at a damaged block, and continued."""
    folder = tmp_path_factory.mktemp("project")
    random = np.random.default_rng(0)
    corpus = Roxxel(folder / "web_*.rox")
    documents = (random.integers(1, 64, 24) for _ in range(300))
    corpus.write(documents, vocab_size=64, block_size=512)
    shard = Path(corpus.paths[0])
    data = bytearray(shard.read_bytes())
    data[4096 + 512 + 9] ^= 1
    shard.write_bytes(data)
    assert main(["train", str(config_of(folder, 8))]) == 1
    log = (folder / "run" / "system.log").read_text()
    assert f'under [without] of a config self = ["{TOKENS}"]' in log
    config = config_of(folder, 8, f'[without]\nself = ["{TOKENS}"]\n')
    assert main(["train", str(config)]) == 0
    return folder


def since(project: Path) -> int:
    (withdrawal,) = open_run(project / "run").sampler().withdrawals
    return withdrawal.step


def test_where_says_since_when_tokens_are_withdrawn(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = ["where", project / "run", "--tokens", "self:[510,518)"]

    text = said(capsys, *inside)
    found = json.loads(said(capsys, *inside, "--json"))
    other = said(capsys, "where", project / "run", "--tokens", "self:[512,518)")

    step = since(project)
    assert f"  tokens [510, 512) are withdrawn from step {step} on" in text
    assert found["withdrawn_tokens"] == [
        {"start": 510, "stop": 512, "steps": [[step, 8]]}
    ]
    assert "withdrawn" not in other


def test_show_says_which_tokens_were_not_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = open_run(project / "run").sampler()
    places = sampler.where("self", 256, 512)
    place = next(each for each in places if each.step >= since(project))
    step = ["show", project / "run", "--step", place.step, "--row", place.row]

    text = said(capsys, *step)
    [row] = json.loads(said(capsys, *step, "--json"))["rows"]

    where = f"tokens [{place.start}, {place.stop})"
    assert f"  masked, so not learned: {where}" in text
    assert f"  withdrawn, so 0 and not read: {where}" in text
    assert row["masked"] == row["unread"] == [[place.start, place.stop]]


def test_plan_diff_and_audit_know_what_is_withdrawn(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = config_of(project, 8, f'[without]\nself = "{TOKENS}"\n')

    plan = " ".join(said(capsys, "plan", same).split())
    diff = said(capsys, "plan", same, "--diff", project / "run")
    sound = said(capsys, "verify", "--data", project / "run")

    assert f"from step {since(project)} on, 256 tokens of self are withdrawn" in plan
    assert "withdrawn" not in diff
    assert "8 steps" in sound
