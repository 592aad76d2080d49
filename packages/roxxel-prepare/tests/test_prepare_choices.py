"""Which documents of the inputs are in a corpus: a split, a shuffle, damage."""

from __future__ import annotations

import gzip
import json
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel
from roxxel_prepare import write_files

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def read_all(path: Path) -> list[bytes]:
    with Roxxel(path) as corpus:
        return [each.tobytes() for each in corpus.documents]


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=40),
    cut=st.integers(0, 40),
    unit_bytes=st.integers(1, 100),
    reverses=st.booleans(),
)
def test_a_document_is_on_the_same_side_in_any_order_of_any_inputs(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[str],
    cut: int,
    unit_bytes: int,
    reverses: bool,
) -> None:
    folder = tmp_path_factory.mktemp("split")
    rows = [*rows, "on one side", "on the other"]
    one = write_lines(folder / "one.jsonl", rows)
    several = [
        write_lines(folder / "a.jsonl", rows[cut:]),
        write_lines(folder / "b.jsonl", rows[:cut]),
    ]
    several = several[::-1] if reverses else several
    split = "--split", "held=0.5"

    codes = {
        run("write", folder / "x_*.rox", one, *split),
        run("write", folder / "y_*.rox", *several, *split, "--unit-bytes", unit_bytes),
    }

    if codes == {1}:  # All documents are on one side, in both corpora.
        return
    assert codes == {0}
    for name in ("{}_*.rox", "{}_held_*.rox"):
        x, y = (read_all(folder / name.format(each)) for each in "xy")
        assert sorted(x) == sorted(y)
    held, rest = (set(read_all(folder / f"x_{each}*.rox")) for each in ("held_", ""))
    assert not held & rest
    assert held | rest == {row.encode() for row in rows}


def test_tokens_are_on_the_same_side_in_any_dtype(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (64, 3))
    np.save(tmp_path / "a.npy", rows.astype(np.uint16))
    text = "".join(json.dumps(row) + "\n" for row in rows.tolist())
    (tmp_path / "b.jsonl").write_text(text, encoding="utf-8")

    for name in ("a.npy", "b.jsonl"):
        target = tmp_path / name[0] / "c_*.rox"
        options = "--split", "held=0.5", "--dtype", "uint16"
        assert run("write", target, tmp_path / name, *options) == 0

    a, b = (read_all(tmp_path / name / "c_held_*.rox") for name in "ab")
    assert a == b
    assert 10 < len(a) < 54


@pytest.mark.parametrize(
    ("path", "held_out", "other"),
    [
        ("wiki_*.rox", "wiki_held_manifest.json", "wiki_held_*.rox"),
        ("wiki*.rox", "wiki_heldmanifest.json", "wiki_held*.rox"),
        ("wiki.rox", "wiki_held.rox", "wiki_held.rox"),
        ("wiki/", "wiki_held/manifest.json", "wiki_held/"),
        ("*.rox", "held/manifest.json", "held/*.rox"),
        ("*_a.rox", "held_manifest_a.json", "held_*_a.rox"),
    ],
)
def test_the_corpus_held_out_has_a_name_beside_the_other(
    tmp_path: Path,
    path: str,
    held_out: str,
    other: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [f"row {number}" for number in range(40)]
    inputs = write_lines(tmp_path / "a.jsonl", rows)
    target = f"{tmp_path}/out/{path}"

    assert run("write", target, inputs, "--split", "held=0.3") == 0

    assert (tmp_path / "out" / held_out).exists()
    first, second, shares = capsys.readouterr().out.splitlines()
    assert shares.startswith("held out ")
    assert first.startswith(f"{tmp_path}/out/{other}: wrote ")
    assert second.startswith(f"{target}: wrote ")
    assert run("write", target, inputs, "--split", "held=0.3") == 0
    assert capsys.readouterr().err.count("kept ") == 2
    assert run("write", target, inputs) == 1


def test_parts_of_a_split_are_committed_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = write_lines(tmp_path / "a.jsonl", [f"row {n}" for n in range(99)])
    command = "write", tmp_path / "c_*.rox", inputs, "--split", "held=0.3"
    for member in (1, 0):
        part = "--unit-bytes", 100, "--part", f"{member}/2"
        assert run(*command, *part) == 0
    assert not list(tmp_path.glob("c_manifest.json"))[1:]
    capsys.readouterr()

    assert run("write", tmp_path / "c_*.rox", "--commit") == 0

    held_out, others, shares = capsys.readouterr().out.splitlines()
    assert shares.startswith("held out ")
    assert held_out.startswith(f"{tmp_path}/c_held_*.rox: wrote ")
    assert others.startswith(f"{tmp_path}/c_*.rox: wrote ")
    counts = [Roxxel(tmp_path / f"c_{n}*.rox").num_documents for n in ("held_", "")]
    assert sum(counts) == 99
    assert min(counts) > 10


def test_a_split_that_leaves_a_side_empty_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = write_lines(tmp_path / "a.jsonl", ["one row"])

    assert run("write", tmp_path / "c_*.rox", inputs, "--split", "held=1e-9") == 1
    assert (
        "c_held_*.rox: no document of the inputs would be in this corpus; choose "
        "another share of --split"
    ) in capsys.readouterr().err
    appended = "--split", "held=0.5", "--exist", "append"
    assert run("write", tmp_path / "c_*.rox", inputs, *appended) == 1
    assert "a split cannot append to several corpora" in capsys.readouterr().err
    assert names_in(tmp_path) == [inputs.name]


def test_a_shuffle_is_an_order_of_all_documents_that_its_seed_determines(
    tmp_path: Path,
) -> None:
    rows = [f"row {number:04d}" for number in range(400)]
    inputs = write_lines(tmp_path / "a.jsonl", rows)
    orders: dict[str, list[bytes]] = {}
    for name, seed, workers in (("a", 0, 1), ("b", 0, 2), ("c", 1, 1)):
        options = "--shuffle", seed, "--workers", workers, "--unit-bytes", 1000
        target = tmp_path / name / "c_*.rox"
        assert run("write", target, inputs, *options) == 0
        orders[name] = read_all(target)

    assert orders["a"] == orders["b"] != orders["c"]
    assert sorted(orders["a"]) == [row.encode() for row in rows]
    follow = sum(first < second for first, second in pairwise(orders["a"]))
    assert 100 < follow < 300
    units = [int(each[4:]) // 80 for each in orders["a"]]
    assert units != sorted(units)


def test_an_error_in_a_shuffled_unit_names_the_document_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "[1]\n" * 7 + "[70000]\n" + "[1]\n" * 7
    (tmp_path / "a.jsonl").write_text(rows, encoding="utf-8")
    options = "--dtype", "uint16", "--shuffle", 3

    assert run("write", tmp_path / "c_*.rox", tmp_path / "a.jsonl", *options) == 1

    assert "a.jsonl: document 7: value 70000 is outside" in capsys.readouterr().err


def test_a_split_lists_what_it_skipped_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b"bad\n" + b"".join(b'"%d"\n' % n for n in range(30))
    )
    command = "write", tmp_path / "c_*.rox", tmp_path / "a.jsonl", "--skip-bad"

    assert run(*command, "--split", "valid=0.5") == 0

    assert capsys.readouterr().err.count("not JSON") == 1


def test_damaged_documents_and_inputs_are_skipped_counted_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tmp_path / "raw; not read yet"
    inputs.mkdir()
    rows = b'"one"\nbad\n"two"\n{"no": 1}\n'
    (inputs / "a.jsonl").write_bytes(rows)
    whole = gzip.compress(b'"three"\n' + b'"four"\n' * 3000)
    (inputs / "b.jsonl.gz").write_bytes(whole[:-20])
    (inputs / "c.jsonl").write_bytes(b'"five"\n')
    command = "write", tmp_path / "c_*.rox", inputs
    assert run(*command) == 1
    assert "a.jsonl:2: not JSON" in capsys.readouterr().err

    assert run(*command, "--skip-bad") == 0

    error = capsys.readouterr().err
    assert "c_*.rox: 3 damaged documents or inputs were skipped\n" in error
    assert f"skipped {inputs / 'a.jsonl'}:2: not JSON" in error
    assert "a.jsonl:4: has no field 'text', only no; " in error
    assert "b.jsonl.gz: ends at byte" in error
    assert error.count("; what follows in the file was left out too\n") == 1
    found = read_all(tmp_path / "c_*.rox")
    assert {b"one", b"two", b"five"} <= set(found)
    assert b"bad" not in found
    with Roxxel(tmp_path / "c_*.rox") as corpus:
        skipped = corpus.metadata["skipped"]
    assert skipped["number"] == 3
    assert len(skipped["errors"]) == 3
    assert run(*command, "--skip-bad") == 0
    assert run(*command) == 1
    assert "skip_bad is yes in the corpus, none given" in capsys.readouterr().err


def test_options_of_units_are_refused_for_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = write_lines(tmp_path / "a.jsonl", ["one"])
    for option in (["--skip-bad"], ["--shuffle", 1]):
        assert run("write", tmp_path / "c.rox", inputs, *option) == 1
        assert "need files that are written in units" in capsys.readouterr().err


def held_out_of(folder: Path, source: Path, *options: object) -> list[bytes]:
    """Hold out of files, and of the whole corpus; compare the two."""
    share = "--split", "held=0.3"
    assert run("write", folder / "a_*.rox", source, *options, *share) == 0
    assert run("write", folder / "whole_*.rox", source, *options) == 0
    whole, outputs = folder / "whole_*.rox", [folder / "b.rox", folder / "b_held.rox"]
    assert run("write", outputs[0], whole, *share) == 0

    found = sorted(read_all(folder / "a_held_*.rox"))
    assert found == sorted(read_all(outputs[1]))
    assert sorted(read_all(folder / "a_*.rox")) == sorted(read_all(outputs[0]))
    assert found
    return found


@pytest.mark.parametrize("options", [(), ("--dtype", "uint32"), ("--separator", 0)])
def test_a_write_and_a_split_hold_out_the_same_documents(
    tmp_path: Path, options: tuple[object, ...]
) -> None:
    rows = np.random.default_rng(0).integers(1, 9, (80, 5)).tolist()
    found = held_out_of(tmp_path, write_lines(tmp_path / "a.jsonl", rows), *options)
    assert len(found) < 60

    folder = tmp_path / "text"
    folder.mkdir()
    texts = write_lines(folder / "a.jsonl", [f"row {number}" for number in range(80)])
    assert len(held_out_of(folder, texts, "--shuffle", 3)) < 60


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floats_are_held_out_as_they_are_stored(tmp_path: Path, dtype: str) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 5)).tolist()
    source = write_lines(tmp_path / "a.jsonl", rows)

    assert len(held_out_of(tmp_path, source, "--dtype", dtype)) < 60


def test_the_error_of_a_document_in_a_split_names_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[number, 1] for number in range(50)]
    rows[37] = [70_000]
    source = write_lines(tmp_path / "a.jsonl", rows)

    options = "--split", "held=0.5", "--dtype", "uint16"
    assert run("write", tmp_path / "c_*.rox", source, *options) == 1

    assert f"{source}: document 37: " in capsys.readouterr().err


def test_a_shuffle_orders_the_documents_of_each_side_of_a_split(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(60)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    for name, seed in (("plain", None), ("mixed", 3)):
        target = tmp_path / name / "c_*.rox"
        write_files(target, path, split=("held", 0.5), shuffle=seed)

    for star in ("c_*.rox", "c_held_*.rox"):
        plain = [bytes(each) for each in Roxxel(tmp_path / "plain" / star).documents]
        mixed = [bytes(each) for each in Roxxel(tmp_path / "mixed" / star).documents]
        order = sorted(
            range(len(plain)), key=lambda at: blake2b(f"3 0 {at}".encode()).digest()
        )
        assert mixed == [plain[at] for at in order]
