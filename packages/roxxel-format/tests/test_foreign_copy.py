"""`copy` turns tokens of other programs into shards with documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_format.cli import main

from .test_foreign import llm_c, write_megatron

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [[5, 6, 7], [], [8], [9, 9]]
LINE = np.array([each for one in DOCUMENTS for each in (*one, 0)], np.uint16)


def copy(*arguments: object) -> int:
    return main(["copy", *map(str, arguments)])


def written(folder: Path, kind: str) -> list[object]:
    """Write the documents as another program does; return the source and options."""
    ends = np.cumsum([len(each) + 1 for each in DOCUMENTS])
    if kind == "nanogpt":
        LINE.tofile(folder / "train.bin")
        return [folder / "train.bin", "--dtype", "uint16"]
    if kind == "llm.c":
        llm_c(folder / "train_000001.bin", LINE[:5], 20240520, 1)
        llm_c(folder / "train_000002.bin", LINE[5:], 20240520, 1)
        return [folder / "train_*.bin"]
    if kind == "olmo":
        LINE.tofile(folder / "part-0.npy")
        return [folder / "part-*.npy", "--dtype", "uint16"]
    if kind == "megatron":
        write_megatron(folder / "text_document", np.split(LINE, ends[:-1]))
        return [folder / "text_document"]
    LINE.tofile(folder / "000_tok.ds")
    ends.astype("<i8").tofile(folder / "000_tok.ds.index")
    return [folder / "000_tok.ds"]


@pytest.mark.parametrize("kind", ["nanogpt", "llm.c", "olmo", "megatron", "datatrove"])
def test_a_copy_has_the_tokens_and_the_documents(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [source, *options] = written(tmp_path, kind)
    target = tmp_path / "out" / "c_*.rox"

    assert copy(source, target, *options, "--separator", 0) == 0

    assert capsys.readouterr().out.startswith("copied 10 tokens (uint16) in 4 doc")
    corpus = Roxxel(target)
    assert corpus.tokens[:].tolist() == LINE.tolist()
    assert [each.tolist() for each in corpus.documents] == DOCUMENTS
    before = sorted(path.read_bytes() for path in target.parent.glob("*.rox"))
    assert copy(source, target, *options, "--separator", 0) == 0
    assert "kept 10 tokens" in capsys.readouterr().err
    assert before == sorted(path.read_bytes() for path in target.parent.glob("*.rox"))


def test_a_copy_of_other_tokens_does_not_replace_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "c_*.rox"
    [source, *options] = written(tmp_path, "nanogpt")
    options += ["--separator", 0]
    assert copy(source, target, *options) == 0
    np.append(LINE, LINE).tofile(tmp_path / "train.bin")

    assert copy(source, target, *options) == 1

    assert "--exist replace" in capsys.readouterr().err
    assert Roxxel(target).num_tokens == 10
    assert copy(source, target, *options, "--exist", "replace") == 0
    assert Roxxel(target).num_tokens == 20


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--dtype", "uint16"), "does not record where documents end"),
        (("--separator", 0), "pass dtype"),
        (("--separator", "<eos>", "--dtype", "uint16"), "pass the --tokenizer"),
        (("--separator", "gr\udcc3\udcb6", "--dtype", "uint16"), "LC_ALL=C.UTF-8"),
        (("--format", "datatrove", "--separator", 0), "train.bin.index"),
        (("--dtype", "uint17", "--separator", 0), "'uint17' not understood"),
    ],
)
def test_a_copy_that_cannot_be_made_is_one_sentence(
    tmp_path: Path,
    options: tuple[object, ...],
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(tmp_path, "nanogpt")

    try:
        code = copy(tmp_path / "train.bin", tmp_path / "c.rox", *options)
    except SystemExit as ended:
        code = ended.code

    assert code in {1, 2}
    assert named in capsys.readouterr().err
    assert not [*tmp_path.glob("*.rox")]


def test_a_separator_that_flat_tokens_lack_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the wrong one of two ids: the documents would run together."""
    for name, tokens in (("none", [5, 6, 7]), ("end", [5, 6, 9]), ("empty", [])):
        np.array(tokens, np.uint16).tofile(tmp_path / f"{name}.bin")
    options = "--dtype", "uint16", "--separator", 9

    assert copy(tmp_path / "none.bin", tmp_path / "a.rox", *options) == 0
    assert "separator 9 is nowhere in it" in capsys.readouterr().err
    assert copy(tmp_path / "end.bin", tmp_path / "b.rox", *options) == 0
    assert capsys.readouterr().err == ""
    assert copy(tmp_path / "empty.bin", tmp_path / "c.rox", *options) == 1
    assert "holds no tokens" in capsys.readouterr().err


def test_options_of_other_formats_are_refused_for_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(tmp_path / "a_*.rox").write([[1, 2]], vocab_size=90)

    # Their heads, checksums and feet would become tokens.
    flat = "--format", "flat", "--dtype", "uint8", "--separator", "none"
    assert copy(tmp_path / "a_*.rox", tmp_path / "b_*.rox", *flat) == 1
    assert "is a shard of Roxxel" in capsys.readouterr().err

    with pytest.raises(SystemExit):
        copy(tmp_path / "a_*.rox", tmp_path / "b_*.rox", "--separator", 0)

    assert "argument --separator: only for" in capsys.readouterr().err


def test_a_flat_file_is_copied_to_shards_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [source, *options] = written(tmp_path, "nanogpt")

    with pytest.raises(SystemExit) as ended:
        copy(source, tmp_path / "all.npy", *options, "--separator", 0)

    assert ended.value.code == 2
    assert f"copy {source} to shards first" in capsys.readouterr().err
    assert not (tmp_path / "all.npy").exists()
