"""Lengths of documents, and documents, tokens and bytes of text by input file."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardWriter
from roxxel_format.cli import main as format_main

from .helpers import corpus_of, documents_of, main

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def totals_of(corpus: Path) -> list[tuple[str, int, int, int | None]]:
    with Roxxel(corpus) as opened:
        return [
            (each.name, each.num_documents, each.num_tokens, each.text_bytes)
            for each in opened.input_totals()
        ]


def write_lines(path: Path, documents: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = [json.dumps(document) for document in documents]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def texts(number: int) -> list[str]:
    chosen = random.Random(number)
    return ["é" * chosen.randrange(40) for _ in range(100 * number)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("c.rox", ()),
        ("c_*.rox", ()),
        ("c_*.rox", ("--unit-bytes", 3000)),
        ("c_*.rox", ("--unit-bytes", 3000, "--max-shard-bytes", 20_000)),
        ("c_*.rox", ("--unit-bytes", 3000, "--shuffle", 5)),
    ],
)
def test_tokens_and_bytes_of_text_are_known_by_input_file(
    tmp_path: Path, name: str, options: tuple[object, ...]
) -> None:
    documents = {f"{number}.jsonl": texts(number) for number in (1, 2, 3)}
    for each, rows in documents.items():
        write_lines(tmp_path / "in" / each, rows)

    target = tmp_path / name
    assert run("write", target, tmp_path / "in", "--separator", 0, *options) == 0

    expected = [
        (each, len(rows), sum(2 * len(row) + 1 for row in rows), 2 * len("".join(rows)))
        for each, rows in documents.items()
    ]
    assert totals_of(target) == expected


def test_ready_made_tokens_have_no_bytes_of_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [[1, 2], [3]])

    assert run("write", tmp_path / "c_*.rox", tmp_path / "in") == 0

    assert totals_of(tmp_path / "c_*.rox") == [("a.jsonl", 2, 3, None)]


def test_a_split_counts_the_documents_of_its_side(tmp_path: Path) -> None:
    rows = [f"document {number}" for number in range(500)]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    options = "--split", "valid=0.2"

    assert run("write", tmp_path / "c_*.rox", tmp_path / "in", *options) == 0

    sides = [totals_of(tmp_path / f"c_{each}*.rox") for each in ("", "valid_")]
    assert sum(side[0][1] for side in sides) == 500
    assert 50 < sides[1][0][1] < 150


def test_an_append_has_inputs_of_its_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in" / "a.jsonl", ["one"])
    assert run("write", tmp_path / "c_*.rox", path) == 0
    assert run("write", tmp_path / "c_*.rox", path, "--exist", "append") == 0

    assert totals_of(tmp_path / "c_*.rox") == [("a.jsonl", 1, 3, 3)] * 2


def test_info_lists_the_inputs_with_most_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 13):
        write_lines(tmp_path / "in" / f"{number}.jsonl", ["é" * number])
    assert run("write", tmp_path / "c_*.rox", tmp_path / "in", "--separator", 0) == 0
    Roxxel(tmp_path / "c_*.rox").write(["x" * 31], separator=0, exist="append")
    capsys.readouterr()

    assert run("info", tmp_path / "c_*.rox") == 0

    drawn = capsys.readouterr().out
    assert "inputs       12 input files, 0.93 bytes of text per token\n" in drawn
    lines = drawn.partition("inputs  ")[2].splitlines()[1:]
    rows = [line.split() for line in lines]
    assert rows[0][:4] == ["12.jsonl", "25", "tokens,", "12.5%,"]
    assert len(rows) == 12
    assert rows[10][:5] == ["and", "2", "more", "8", "tokens,"]
    assert rows[11] == ["not", "recorded", "32", "tokens,", "16.0%"]
    assert "input_files" not in drawn
    assert run("info", tmp_path / "c_*.rox", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["inputs"]) == 12
    assert facts["bytes_per_token"] == 156 / 168
    assert "input_files" not in facts["metadata"]


def test_info_says_the_same_of_one_file_and_of_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "in" / "a.jsonl", ["one"])
    capsys.readouterr()

    def metadata_of(name: str) -> str:
        assert run("write", tmp_path / name, path) == 0
        capsys.readouterr()
        assert run("info", tmp_path / name) == 0
        return capsys.readouterr().out.partition("metadata")[2].partition("versions")[0]

    assert metadata_of("one.rox") == metadata_of("many_*.rox") != ""


def test_very_many_inputs_of_a_unit_are_joined(tmp_path: Path) -> None:
    for number in range(1, 301):
        write_lines(tmp_path / "in" / f"{number}.jsonl", ["ab"])

    assert run("write", tmp_path / "c_*.rox", tmp_path / "in") == 0

    totals = totals_of(tmp_path / "c_*.rox")
    assert len(totals) == 256
    assert totals[0] == ("1.jsonl", 1, 2, 2)
    assert totals[-1] == ("and 45 more", 45, 90, 90)


@pytest.mark.parametrize("value", ["text", ["a.txt"], {"numbers": [1]}, {"numbers": 1}])
def test_metadata_with_this_name_and_another_meaning_are_no_record(
    tmp_path: Path, value: object
) -> None:
    path = tmp_path / "c.rox"
    with ShardWriter(path, "uint8", metadata={"input_files": value}) as writer:
        writer.append(np.array([1]))

    assert Roxxel(path).input_totals() == []


def test_info_shows_percentiles_of_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_of(tmp_path, documents_of(*range(1, 100), 100_000))

    assert run("info", tmp_path) == 0

    expected = "percentiles  1 % 1, 10 % 10, 50 % 50, 90 % 90, 99 % 99\n"
    assert expected in capsys.readouterr().out


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(
        st.one_of(st.integers(0, 9), st.integers(0, 300_000)), min_size=1, max_size=40
    )
)
def test_percentiles_are_lengths_of_documents(
    lengths: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus = Roxxel(tmp_path_factory.mktemp("lengths") / "c.rox")
    corpus.write([np.zeros(length, np.uint8) for length in lengths])

    found = corpus.document_lengths().percentiles

    assert list(found) == [1, 10, 50, 90, 99]
    for percent, length in found.items():
        rank = max(1, -(-len(lengths) * percent // 100))
        expected = sorted(lengths)[rank - 1]
        assert length == expected


def test_joined_inputs_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 301):
        write_lines(tmp_path / "in" / f"{number}.jsonl", ["ab"])
    assert run("write", tmp_path / "c_*.rox", tmp_path / "in") == 0
    capsys.readouterr()

    assert run("info", tmp_path / "c_*.rox") == 0

    drawn = capsys.readouterr().out
    assert drawn.count(" more    ") == 1
    assert " and 290 more          580 tokens, 96.7%" in drawn
    assert "300 input files" in drawn


def test_info_prints_no_control_characters_and_no_endless_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {"source": "a\x1b[2J\x9bb", "na\x1bme": 1, "many": [*range(400)]}
    Roxxel(tmp_path / "c_*.rox").write([[1]], vocab_size=9, metadata=hostile)

    assert run("info", tmp_path / "c_*.rox") == 0

    lines = capsys.readouterr().out.splitlines()
    assert not [each for each in lines if not each.isprintable()]
    assert max(map(len, lines)) < 240
    assert any(each.endswith("source a\\x1b[2J\\x9bb") for each in lines)
    assert any("na\\x1bme 1" in each for each in lines)


def test_files_of_an_unquoted_pattern_are_said_to_be_of_two_corpora(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, target = tmp_path / "a.jsonl", tmp_path / "c" / "my_*.rox"
    text.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(1, 20)))
    assert run("write", target, text, "--split", "valid=0.5") == 0
    shards = sorted(target.parent.glob("my_*.rox"))
    capsys.readouterr()

    assert format_main(["info", *map(str, shards)]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    for words in ("/my_*.rox'", "/my_valid_*.rox'", "quote the pattern"):
        assert words in note
    assert format_main(["info", str(target)]) == 0
    assert not capsys.readouterr().err


def test_a_write_to_an_unquoted_pattern_names_the_corpus_whose_shard_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c" / "my_*.rox"
    (tmp_path / "a.txt").write_text("text")
    assert run("write", target, tmp_path / "a.txt") == 0
    (shard,) = target.parent.glob("my_*.rox")
    before = shard.read_bytes()

    assert run("write", shard, tmp_path / "a.txt", "--exist", "replace") == 1

    error = capsys.readouterr().err.splitlines()[-1]
    for words in (str(shard), "is a shard of the corpus", str(target), "in quotes"):
        assert words in error
    assert shard.read_bytes() == before


def test_info_names_the_inputs_of_every_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, folder in enumerate(("may", "june", "july")):
        for each in range(number + 1):
            write_lines(tmp_path / folder / f"{folder}{each}.jsonl", ["text"])
        append = "--exist", "append", "--separator", 0
        assert run("write", tmp_path / "c_*.rox", tmp_path / folder, *append) == 0
    capsys.readouterr()

    assert format_main(["info", str(tmp_path / "c_*.rox")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert format_main(["info", "--json", str(tmp_path / "c_*.rox")]) == 0
    facts = json.loads(capsys.readouterr().out)

    expected = ["may0.jsonl", "june0.jsonl and 1 more", "july0.jsonl and 2 more"]
    assert [row["source"] for row in facts["versions"]] == expected
    assert [
        line.partition(", from ")[2] for line in lines if ", from " in line
    ] == expected
    assert not [line for line in lines if " source " in line]
