"""What the README shows is what the commands read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel_format import Roxxel

README = Path(__file__).parents[1] / "README.md"


def block_with(word: str) -> str:
    blocks = re.findall(r"```\w+\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found


def test_the_config_of_the_readme_can_be_planned_and_built(tmp_path: Path) -> None:
    config = block_with("[[phases]]").replace("= 8193", "= 2049")
    config = config.replace('"small"', '"tiny"').replace("= 128\n", "= 2\n")
    (tmp_path / "first.toml").write_text(config.replace("= 16\n", "= 2\n"))
    (tmp_path / "data").mkdir()
    for name in ("web_*.rox", "code_*.rox", "held_out.rox"):
        documents = (np.arange(2000) % 50 for _ in range(60))
        Roxxel(tmp_path / "data" / name).write(documents, vocab_size=50)

    assert main(["plan", str(tmp_path / "first.toml")]) == 0
    trainer = make_trainer(load_config(tmp_path / "first.toml"))

    assert trainer.plan().total_steps == 19_200
