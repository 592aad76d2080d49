"""Corpora of other formats in a config file."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import (
    ConfigError,
    check_model_data,
    config_text,
    load_config,
    open_curriculum,
    open_eval_curriculum,
    open_foreign_source,
    parse_config,
)
from roxxel_curriculum import Curriculum
from roxxel_format.foreign import DatatroveTokens, FlatTokens, MegatronTokens
from roxxel_train import RunFolderError

from .runs import MODEL

if TYPE_CHECKING:
    from pathlib import Path

IDS = np.arange(600, dtype=np.uint16) % 500
TEXT = """
[sources]
self = {source}

[[phases]]
steps = 3
batch_size = 2
seq_len = 8
"""


def write_flat(folder: Path) -> None:
    IDS.tofile(folder / "train.bin")


def write_llm_c(folder: Path) -> None:
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, IDS.size
    (folder / "train.bin").write_bytes(head.tobytes() + IDS.tobytes())


def write_megatron(folder: Path) -> None:
    IDS.tofile(folder / "text.bin")
    head = b"MMIDIDX" + bytes(2) + struct.pack("<QBQQ", 1, 8, 2, 3)
    parts = struct.pack("<2i5q", 400, 200, 0, 800, 0, 1, 2)
    (folder / "text.idx").write_bytes(head + parts)


def write_datatrove(folder: Path) -> None:
    IDS.tofile(folder / "0.ds")
    (folder / "0.ds.index").write_bytes(np.array([400, 600], np.uint64).tobytes())


@pytest.mark.parametrize(
    ("write", "source", "kind"),
    [
        (write_flat, '{ path = "train.bin", dtype = "uint16" }', FlatTokens),
        (write_flat, '{ path = "*.bin", format = "flat", dtype = "u2" }', FlatTokens),
        (write_llm_c, '"train.bin"', FlatTokens),
        (write_megatron, '"text"', MegatronTokens),
        (write_megatron, '{ path = "text.bin", separator = 0 }', MegatronTokens),
        (write_datatrove, '"0.ds"', DatatroveTokens),
    ],
)
def test_tokens_of_another_format_are_a_source(
    tmp_path: Path, write: object, source: str, kind: type
) -> None:
    assert callable(write)
    write(tmp_path)
    (tmp_path / "run.toml").write_text(TEXT.format(source=source))

    config = load_config(tmp_path / "run.toml")
    curriculum = open_curriculum(config)

    assert isinstance(curriculum.primary_streamer, kind)
    assert isinstance(open_foreign_source(config, "self"), kind)
    found = np.unique(curriculum.sampler(0).batch(0))
    assert set(found.tolist()) <= set(IDS.tolist())
    assert curriculum.primary_streamer.num_tokens == 600
    assert parse_config(config_text(config), config.file) == config


@pytest.mark.parametrize("proxy", ["", "[proxy]\nscale = 0.5\n"])
def test_a_separator_in_a_config_must_be_the_one_that_ends_texts_of_the_model(
    tmp_path: Path, proxy: str
) -> None:
    write_megatron(tmp_path)
    source = '{ path = "text.bin", separator = 0 }'
    recipe = (
        'model = "roxxel.models:llama"\n'
        'model_args = { preset = "tiny", vocab_size = 500, eos_token_id = 7 }\n'
    )
    path = tmp_path / "run.toml"
    path.write_text(recipe + TEXT.format(source=source) + proxy)
    config = load_config(path)

    curriculum = open_curriculum(config)

    assert curriculum.primary_streamer.separator == (0,)
    with pytest.raises(ConfigError, match="token 0 ends the documents of source 'sel"):
        check_model_data(config, curriculum)


def test_a_source_of_another_format_that_moved_is_opened_as_that_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_flat(tmp_path)
    (tmp_path / "tiny.py").write_text(MODEL)
    head = 'model = "tiny:make"\nsave_path = "run"\nmodel_args = { vocabulary = 500 }\n'
    source = '{ path = "train.bin", dtype = "uint16" }'
    (tmp_path / "run.toml").write_text(head + TEXT.format(source=source))
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    run, moved = tmp_path / "run", tmp_path / "moved.bin"
    (tmp_path / "train.bin").rename(moved)
    capsys.readouterr()

    with pytest.raises(
        RunFolderError, match=r"'self' .*train\.bin.* --source self=PATH"
    ):
        open_run(run).sampler()
    assert main(["show", str(run), "--step", "0", "--source", f"self={moved}"]) == 0
    assert "row 1: self tokens" in capsys.readouterr().out
    log = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(log.replace('"config": "', '"was": "'))
    with pytest.raises(RunFolderError, match=r"moved\.bin.* dtype"):
        open_run(run, sources={"self": moved}).sampler()
    given = FlatTokens(moved, dtype="uint16")
    assert open_run(run, sources={"self": given}).sampler().batch(0).shape == (2, 8)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('"train.bin"', "pass dtype"),
        ('{ path = "train.bin", dtype = "uint17" }', "'uint17' not understood"),
        ('["text_document.bin", "train.bin"]', r"and 1 more: .* one \.bin file"),
    ],
)
def test_files_that_are_not_to_be_read_so_are_an_error_that_names_the_source(
    source: str, named: str, tmp_path: Path
) -> None:
    write_flat(tmp_path)
    (tmp_path / "run.toml").write_text(TEXT.format(source=source))

    with pytest.raises(ConfigError, match=rf"run\.toml: source 'self': .*{named}"):
        open_curriculum(load_config(tmp_path / "run.toml"))


def test_a_held_out_set_and_a_tokenizer_of_another_format(tmp_path: Path) -> None:
    write_flat(tmp_path)
    source = '{ path = "train.bin", dtype = "uint16", tokenizer = "gpt2" }'
    text = TEXT.format(source=source)
    text += f"[eval]\nsources = {{ self = {source} }}\n"
    text += "phases = [{ steps = 1, batch_size = 2, seq_len = 8 }]\n"
    (tmp_path / "run.toml").write_text(text)

    config = load_config(tmp_path / "run.toml")

    assert config.schedule.tokenizers == {"self": "gpt2"}
    held_out = open_eval_curriculum(config)
    assert isinstance(held_out, Curriculum)
    assert isinstance(held_out.primary_streamer, FlatTokens)
    assert parse_config(config_text(config), config.file) == config
