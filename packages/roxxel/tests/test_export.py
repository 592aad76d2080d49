"""The export of a run's checkpoint carries step, config and tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from roxxel import import_safetensors, open_run
from roxxel.cli import main
from roxxel.config import parse_config
from roxxel_format import Roxxel

from .helpers import make_model
from .runs import write_project

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_exported_and_read_into_a_model(tmp_path: Path) -> None:
    config = write_project(tmp_path / "project")
    assert main(["train", str(config)]) == 0
    assert main(["train", str(config), "--set", "phases.1.steps=4"]) == 0
    run, target = config.parent / "run", tmp_path / "model.safetensors"

    for name, step, steps in ((str(run), 8, "steps = 4"), (f"{run}@6", 6, "steps = 2")):
        assert main(["ckpt", "export", name, str(target)]) == 0

        first = make_model(parse_config(config.read_text(), config))
        carried = import_safetensors(target, first)
        made = make_model(parse_config(carried["config"], run / "x.toml"))
        import_safetensors(target, made)
        expected = open_run(run).model(step).embedding[...]
        np.testing.assert_array_equal(made.embedding[...], expected)
        assert carried["step"] == str(step)
        assert carried["config"].count(steps) == carried["config"].count("steps = 4")
        assert "tokenizer" not in carried


def test_the_tokenizer_of_the_primary_corpus_is_named(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    corpus = Roxxel(tmp_path / "web_*.rox")

    class Letters:
        """Encodes each letter of a text as its number in the alphabet."""

        name_or_path = "letters"

        def encode(self, text: str) -> list[int]:
            return [ord(letter) % 50 for letter in text]

    documents = ["abcdefgh" * 5] * 8
    corpus.write(
        documents, vocab_size=50, tokenizer=Letters(), separator=None, exist="replace"
    )
    assert main(["train", str(config)]) == 0

    target = tmp_path / "model.safetensors"
    command = ["ckpt", "export", str(tmp_path / "run"), str(target)]
    assert main(command) == 0

    model = make_model(parse_config(config.read_text(), config))
    assert import_safetensors(target, model)["tokenizer"] == corpus.tokenizer
    assert corpus.tokenizer
