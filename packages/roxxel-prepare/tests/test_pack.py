"""Files are packed into bins, unit by unit, whoever writes the units."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_format import Roxxel
from roxxel_prepare import commit_files, write_files
from roxxel_store import roxxel_command

from .helpers import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(5):
        rows = [
            {"id": f"{number}.{row}", "text": chr(97 + row % 26) * int(size)}
            for row, size in enumerate(random.integers(1, 90, 60))
        ]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def command(corpus: Path, inputs: Path, *more: object) -> int:
    given = ["write", corpus, inputs, "--separator", "0", "--pack", "33", *more]
    given += ["--document-id", "id", "--unit-bytes", "4000"]
    return main([str(each) for each in given])


def content(folder: Path) -> dict[str, bytes]:
    assert not [*folder.glob(".*.plan"), *folder.glob(".*.unit")]
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def test_bins_do_not_depend_on_who_writes_the_units(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path / "a" / "c_*.rox", inputs, "--workers", 1) == 0
    assert "bins of 33 tokens" in capsys.readouterr().out
    assert command(tmp_path / "b" / "c_*.rox", inputs, "--workers", 2) == 0
    for part in range(3):
        write_files(
            tmp_path / "d" / "c_*.rox",
            inputs,
            part=(part, 3),
            unit_bytes=4000,
            separator=0,
            pack=33,
            document_id="id",
        )
    [summary] = commit_files(tmp_path / "d" / "c_*.rox")
    expected = content(tmp_path / "a")
    assert len(expected) > 6
    assert content(tmp_path / "b") == content(tmp_path / "d") == expected
    assert summary.unit == 33


def test_every_document_is_packed_with_its_id(tmp_path: Path, inputs: Path) -> None:
    assert command(tmp_path / "c_*.rox", inputs, "--shuffle", 3) == 0
    corpus = Roxxel(tmp_path / "c_*.rox")
    found: dict[str, bytes] = {}
    ids = corpus.column("id")
    for number, document in enumerate(corpus.documents):
        found[ids[number]] = found.get(ids[number], b"") + document.tobytes()
    rows = [
        json.loads(line)
        for path in inputs.glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    texts = {row["id"]: row["text"].encode() + b"\0" for row in rows}
    assert {name: sorted(each) for name, each in found.items()} == {
        name: sorted(each) for name, each in texts.items()
    }
    num_tokens = sum(map(len, texts.values()))
    assert corpus.num_tokens - corpus.num_padding == num_tokens
    assert sum(each.num_tokens for each in corpus.input_totals()) == num_tokens
    assert corpus.num_cut == sum(len(text) > 33 for text in texts.values())


def test_a_unit_without_documents_has_no_bins(tmp_path: Path, inputs: Path) -> None:
    (inputs / "0.jsonl").write_text("", encoding="utf-8")
    (inputs / "00.jsonl").write_text("\n" * 5000, encoding="utf-8")
    assert command(tmp_path / "c_*.rox", inputs) == 0
    assert Roxxel(tmp_path / "c_*.rox").unit == 33


def test_held_out_documents_are_packed_too(tmp_path: Path, inputs: Path) -> None:
    assert command(tmp_path / "c_*.rox", inputs, "--split", "valid=0.2") == 0
    held = Roxxel(tmp_path / "c_valid_*.rox")
    assert held.unit == 33
    assert 0 < held.num_tokens < Roxxel(tmp_path / "c_*.rox").num_tokens


def test_a_packed_corpus_is_not_split_into_parts_of_documents(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path / "c_*.rox", inputs) == 0
    paths = [str(tmp_path / each) for each in ("a_*.rox", "c_*.rox")]
    assert main(["write", *paths, "--split", "valid=0.02"]) == 1
    assert "bins of 33 tokens" in capsys.readouterr().err


def test_another_unit_is_another_preparation(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path / "c_*.rox", inputs) == 0
    assert command(tmp_path / "c_*.rox", inputs, "--pack", 34) == 1
    assert "pack is 33 in the corpus, 34 given" in capsys.readouterr().err
    assert command(tmp_path / "c_*.rox", inputs, "--exist", "append") == 0
    append = "--exist", "append", "--pack", 34
    assert command(tmp_path / "c_*.rox", inputs, *append) == 1
    assert "its pack is 33, but 34 of" in capsys.readouterr().err


def bucketed(corpus: Path, inputs: Path, *more: object) -> int:
    given = ["write", corpus, inputs, "--separator", "0", *more]
    return main([str(each) for each in given])


def test_a_document_is_in_the_first_bucket_that_is_long_enough(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--bucket-by-length", "16,33,64"
    assert bucketed(tmp_path / "c_*.rox", inputs, *options) == 0
    assert capsys.readouterr().out.count("bins of") == 3
    texts = [
        json.loads(line)["text"].encode() + b"\0"
        for path in inputs.glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    bounds = {16: (1, 16), 33: (17, 33), 64: (34, 999)}
    for unit, (least, greatest) in bounds.items():
        corpus = Roxxel(tmp_path / f"c_{unit}_*.rox")
        here = [text for text in texts if least <= len(text) <= greatest]
        assert corpus.unit == unit
        assert corpus.num_tokens - corpus.num_padding == sum(map(len, here))
        assert corpus.num_cut == sum(len(text) > 64 for text in here)
    capsys.readouterr()
    assert bucketed(tmp_path / "c_*.rox", inputs, *options) == 0
    assert capsys.readouterr().err.count("kept") == 3


def test_parts_and_held_out_documents_of_buckets(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--bucket-by-length", "33,64", "--split", "valid=0.3"
    assert bucketed(tmp_path / "a" / "c_*.rox", inputs, *options) == 0
    corpus = tmp_path / "b" / "c_*.rox"
    for part in ("0/2", "1/2"):
        capsys.readouterr()
        assert bucketed(corpus, inputs, *options, "--part", part) == 0
    said = capsys.readouterr().out
    for unit in (33, 64):
        path = str(tmp_path / "b" / f"c_{unit}_*.rox")
        assert roxxel_command(f"prepare write '{path}' --commit") in said
        assert main(["write", path, "--commit"]) == 0
        assert Roxxel(tmp_path / "b" / f"c_{unit}_valid_*.rox").unit == unit
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("split", [(), ("--split", "valid=0.3")])
def test_a_bucket_without_documents_names_its_length(
    split: tuple[str, ...],
    tmp_path: Path,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--bucket-by-length", "200,300", *split
    assert bucketed(tmp_path / "c_*.rox", inputs, *options) == 1
    error = capsys.readouterr().err
    assert "c_300_" in error
    assert "or other lengths of --bucket-by-length" in error


@pytest.mark.parametrize("lengths", ["33,33", "64,33", "1,33", "x", "33,"])
def test_lengths_of_buckets_ascend(
    lengths: str, tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bucketed(tmp_path / "c_*.rox", inputs, "--bucket-by-length", lengths)
    assert repr(lengths) in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"pack=9 and bucket_by_length=\[9, 12\]"):
        write_files(tmp_path / "c_*.rox", inputs, bucket_by_length=[9, 12], pack=9)
