"""What the commands say of a damaged block that a run masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel import Roxxel, open_run
from roxxel.cli import main
from roxxel.config import ConfigError, load_config

from .runs import llama_config, said

TRAINER = """\
fields = ["tokens", "segment_ids", "loss_mask"]
check = "blocks"
on_damage = "{on_damage}"
"""


def config_of(folder: Path, steps: int, on_damage: str = "mask") -> Path:
    return llama_config(folder, steps, TRAINER.format(on_damage=on_damage))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of 6 steps, which masks a damaged block."""
    folder = tmp_path_factory.mktemp("project")
    random = np.random.default_rng(0)
    corpus = Roxxel(folder / "web_*.rox")
    documents = (random.integers(1, 64, 24) for _ in range(300))
    corpus.write(documents, vocab_size=64, block_size=512)
    shard = Path(corpus.paths[0])
    data = bytearray(shard.read_bytes())
    data[4096 + 512 + 9] ^= 1
    shard.write_bytes(data)
    assert main(["train", str(config_of(folder, 6))]) == 0
    return folder


def masked(project: Path) -> Any:
    (block,) = open_run(project / "run").sampler().damaged
    return block


def test_where_says_since_when_and_why_tokens_are_masked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = masked(project)
    inside = f"self:[{block.stop - 2},{block.stop + 5})"

    text = said(capsys, "where", project / "run", "--tokens", inside)
    found = json.loads(
        said(capsys, "where", project / "run", "--tokens", inside, "--json")
    )
    outside = f"self:[{block.stop},{block.stop + 5})"
    other = said(capsys, "where", project / "run", "--tokens", outside)

    assert f"  masked from step {block.step} on, because damaged: block 1 (" in text
    assert found["damaged"] == [block.to_json()]
    assert "damaged" not in other


def test_show_says_which_tokens_were_read_as_0(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = masked(project)
    sampler = open_run(project / "run").sampler()
    place = next(sampler.where("self", block.start, block.stop))
    step = ["show", project / "run", "--step", place.step, "--row", place.row]

    text = said(capsys, *step)
    [row] = json.loads(said(capsys, *step, "--json"))["rows"]

    assert f"  masked, so not learned: tokens [{place.start}, {place.stop})" in text
    assert f"  read as 0 from step {block.step} on: damaged block 1 (" in text
    assert row["masked"] == [[place.start, place.stop]]
    assert row["damaged"] == [block.to_json()]


def test_plan_diff_and_audit_know_the_block(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = config_of(project, 8)

    plan = " ".join(said(capsys, "plan", longer).split())
    diff = said(capsys, "plan", longer, "--diff", project / "run")
    sound = said(capsys, "audit", project / "run")

    step = masked(project).step
    assert f"from step {step} on, the run masks damaged block 1 (byte 4608" in plan
    assert "damaged" not in diff
    assert "6 steps" in sound


def test_a_config_names_what_happens_on_damage(tmp_path: Path) -> None:
    loaded = load_config(config_of(tmp_path, 8))

    assert loaded.trainer["on_damage"] == "mask"
    with pytest.raises(ConfigError, match="on_damage"):
        load_config(config_of(tmp_path, 8, on_damage="skip"))
