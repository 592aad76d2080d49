"""`roxxel export` writes what transformers loads; a run begins with such a folder."""

from __future__ import annotations

import json
import shutil
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
from .tokenizer_kinds import BOS, tokenizer_kinds

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


def test_an_export_says_what_the_folder_of_the_tokenizer_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizer_kinds()["words with BOS and an unknown"]
    tokenizer.add_special_tokens(["<pad>", "<|end|>"])
    source = tmp_path / "tokenizer"
    source.mkdir()
    tokenizer.save(str(source / "tokenizer.json"))
    said_there = {
        "tokenizer_config.json": {"eos_token": "<|end|>", "model_max_length": 77},
        "special_tokens_map.json": {"pad_token": {"content": "<pad>", "lstrip": False}},
        "generation_config.json": {"temperature": 0.5, "eos_token_id": 1},
    }
    for name, values in said_there.items():
        (source / name).write_text(json.dumps(values))
    template = "{% for m in messages %}{{ m.content }} <|end|>{% endfor %}"
    (source / "chat_template.jinja").write_text(template)
    chat = [
        {"role": role, "content": "alpha beta " * 9} for role in ("user", "assistant")
    ]
    text = Roxxel(tmp_path / "text.rox")
    text.write(["alpha beta gamma " * 9] * 4, tokenizer=str(source), separator=1)
    chats = Roxxel(tmp_path / "chats_*.rox")
    rows = [{"messages": chat}] * 4
    chats.write(rows, tokenizer=str(source), chat=True, separator=1)
    sources = 'self = "text.rox"\nchats = "chats_*.rox"'
    config = TEXT_RUN.replace('self = "text.rox"', sources).replace("256", "9")
    config = config.replace("seq_len = 9", "seq_len = 9\nweights = {self=1, chats=1}")
    (tmp_path / "run.toml").write_text(config)
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    capsys.readouterr()
    shutil.rmtree(source)

    shown = said(capsys, "export", tmp_path / "run", tmp_path / "hf")

    folder = tmp_path / "hf"
    config, generation = (
        json.loads((folder / f"{name}_config.json").read_text())
        for name in ("tokenizer", "generation")
    )
    number = tokenizer.token_to_id
    assert (folder / "chat_template.jinja").read_text() == template
    assert {**said_there["tokenizer_config.json"], "bos_token": BOS}.items() <= (
        config.items()
    )
    map_of = json.loads((folder / "special_tokens_map.json").read_text())
    assert map_of == said_there["special_tokens_map.json"]
    assert generation == {
        "temperature": 0.5,
        "bos_token_id": 0,
        "eos_token_id": [1, number("<|end|>")],
        "pad_token_id": number("<pad>"),
    }
    assert json.loads((folder / "config.json").read_text())["bos_token_id"] == 0
    for name in (*said_there, "chat_template.jinja", "tokenizer.json"):
        assert name in shown


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
