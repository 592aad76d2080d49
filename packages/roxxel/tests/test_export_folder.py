"""`roxxel export` writes what transformers loads; a run begins with such a folder."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.models.huggingface import load
from roxxel_format import Roxxel
from roxxel_train import RunFolder

from .runs import said, write_project
from .test_sample import TEXT_RUN

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "To be, or not to be: that is the question. "
RECIPE = """
ema = 0.5
schedule = "constant"
warmup = 0
[trainer]
checkpoint_every = 1
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    text = [TEXT * 8] * 4
    Roxxel(folder / "text.rox").write(text, tokenizer="bytes", exist="replace")
    config = TEXT_RUN.replace("vocab_size = 256", "vocab_size = 257")
    config = config.replace("steps = 2", "steps = 3") + RECIPE
    (folder / "first.toml").write_text(config)
    assert main(["train", str(folder / "first.toml")]) == 0
    return folder


def test_a_run_is_exported_with_the_average_and_the_tokenizer(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hf"

    shown = said(capsys, "export", f"{project / 'run'}@2", folder)

    assert "parameters in float32, with the tokenizer" in shown
    arguments = (f"{project / 'run'}@2", tmp_path / "hf2", "--json")
    facts = json.loads(said(capsys, "export", *arguments))
    assert facts["has_tokenizer"]
    ours, theirs = open_run(project / "run").model(2), load(folder)
    for name in ("embed_tokens", "norm"):
        one, other = (getattr(x.model, name).weight[...] for x in (ours, theirs))
        np.testing.assert_array_equal(one, other)
    tokenizers = import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hé\x00 1").ids == list("hé\x00 1".encode())
    named = (folder / "tokenizer_config.json").read_text()
    assert '"eos_token": "<|endoftext|>"' in named
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 256
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == 256
    assert main(["export", str(project / "run"), str(folder)]) == 1
    assert "holds files; name a new folder" in capsys.readouterr().err


def test_a_run_begins_with_the_weights_of_a_folder(
    project: Path, tmp_path: Path
) -> None:
    folder, run = tmp_path / "hf", project / "b"
    assert main(["export", str(project / "run"), str(folder)]) == 0
    changes = [f"trainer.init_from=hf:{folder}", "save_path=b", "phases.0.steps=1"]
    changes.append("model_args.peak_rate=0.0")
    sets = [x for each in changes for x in ("--set", each)]

    assert main(["train", str(project / "first.toml"), *sets]) == 0

    begun, found = load(folder), open_run(run).model()
    for name in ("embed_tokens", "norm"):
        one, other = (getattr(x.model, name).weight[...] for x in (begun, found))
        np.testing.assert_allclose(one, other, rtol=1e-6)
    lines = [entry.text for entry in RunFolder(run).log()]
    assert f"begins with the weights of hf:{folder}" in lines
    assert (RunFolder(run).record or {})["init_from"]["path"] == f"hf:{folder}"


def test_a_model_of_ones_own_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    assert main(["train", str(config)]) == 0

    assert main(["export", str(tmp_path / "run"), str(tmp_path / "hf")]) == 1

    assert "is a Embed, which is no class of transformers" in capsys.readouterr().err
