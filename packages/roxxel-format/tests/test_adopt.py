"""Shards without a manifest are no corpus until they are adopted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, ShardWriter
from roxxel_format.cli import main

from .helpers import corpus_of, documents_of, in_child, listed, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def bare(folder: Path, names: Sequence[str], dtype: str = "uint8", **more: Any) -> None:
    """Write a shard of each name; the token is the position of the name."""
    for value, name in enumerate(names):
        with ShardWriter(folder / name, dtype, **more) as writer:
            writer.append(np.array([value]))


@pytest.mark.parametrize("path", ["c_*.rox", ".", "c_[0-9]*.rox"])
def test_shards_without_a_manifest_are_an_error_that_names_the_command(
    path: str, tmp_path: Path
) -> None:
    bare(tmp_path, ["c_00000.rox", "c_00001.rox"])

    with pytest.raises(ShardError, match=r"roxxel.format verify .*--adopt") as caught:
        _ = Roxxel(tmp_path / path).num_tokens

    assert str(tmp_path / path) in str(caught.value)
    assert "c_00000.rox and 1 more" in str(caught.value)
    assert "open a corpus by its own pattern" in str(caught.value)
    assert Roxxel(sorted(tmp_path.glob("*.rox"))).num_tokens == 2


def test_a_lost_manifest_comes_back_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[1000] * 30), separator=b"\1")
    before, tokens = listed(tmp_path), corpus.tokens[:]
    (tmp_path / "c_manifest.json").unlink()

    assert main(["verify", "--adopt", str(tmp_path / "c_*.rox")]) == 0

    assert "adopted" in capsys.readouterr().out
    after = listed(tmp_path)
    assert after["shards"] == before["shards"]
    assert after["separator"] == before["separator"]
    assert Roxxel(tmp_path / "c_*.rox").fingerprint == corpus.fingerprint
    assert (Roxxel(tmp_path).tokens[:] == tokens).all()
    assert corpus_of(tmp_path, [[1]], separator=b"\1", exist="append").num_tokens


def test_the_order_of_several_writes_is_said_to_be_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        corpus_of(tmp_path, [[number]], exist="append")
    (tmp_path / "c_manifest.json").unlink()

    Roxxel(tmp_path / "c_*.rox").adopt()

    assert sorted(Roxxel(tmp_path).tokens[:].tolist()) == [0, 1, 2]
    assert "3 writes" in capsys.readouterr().err


def test_columns_that_are_lost_with_the_manifest_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    row = {"prompt": [1], "completion": [2], "id": "a"}
    fields: dict[str, Any] = {"prompt": "prompt", "completion": "completion"}
    corpus.write([row], dtype="uint16", separator=0, document_id="id", **fields)
    (tmp_path / "c_manifest.json").unlink()

    corpus.adopt()

    (line,) = capsys.readouterr().err.splitlines()
    assert "id, loss_mask" in line
    assert "write_column" in line


@given(numbers=st.lists(st.integers(0, 9999), min_size=1, max_size=9, unique=True))
def test_adopted_shards_are_in_the_natural_order_of_their_names(
    numbers: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("c")
    bare(folder, [f"mine-{number}.rox" for number in numbers])

    assert Roxxel(folder / "mine-*.rox").adopt().num_shards == len(numbers)

    expected = [numbers.index(number) for number in sorted(numbers)]
    assert Roxxel(folder / "mine-*.rox").tokens[:].tolist() == expected
    assert Roxxel(folder).tokens[:].tolist() == expected


def test_a_folder_is_adopted_whatever_the_names_of_its_shards(tmp_path: Path) -> None:
    bare(tmp_path, ["first.rox", "second.rox"])

    Roxxel(tmp_path).adopt()

    assert Roxxel(tmp_path).paths == [
        str(tmp_path / "first.rox"),
        str(tmp_path / "second.rox"),
    ]
    assert Roxxel(tmp_path).write([[7]], dtype="uint8", exist="append").num_tokens == 1
    assert Roxxel(tmp_path).tokens[:].tolist() == [0, 1, 7]


def test_shards_of_another_manifest_are_left_out(tmp_path: Path) -> None:
    bare(tmp_path, ["c_00000.rox", "c_en_00000.rox"])

    with pytest.raises(ShardError, match=r'c_en_00000\.rox.*adopt "c_en_\*\.rox"'):
        Roxxel(tmp_path / "c_*.rox").adopt()
    Roxxel(tmp_path / "c_en_*.rox").adopt()
    Roxxel(tmp_path / "c_*.rox").adopt()

    assert Roxxel(tmp_path / "c_*.rox").tokens[:].tolist() == [0]
    assert Roxxel(tmp_path / "c_en_*.rox").tokens[:].tolist() == [1]


def test_corpora_of_one_file_are_never_joined(tmp_path: Path) -> None:
    for name in ("code", "prose"):
        Roxxel(tmp_path / f"{name}.rox").write([[1, 2]])

    with pytest.raises(ShardError, match=r"code\.rox.*by a list of them"):
        _ = Roxxel(tmp_path).num_tokens
    with pytest.raises(ShardError, match=r"code\.rox.*corpus of one file"):
        Roxxel(tmp_path).adopt()
    assert names_in(tmp_path) == ["code.rox", "prose.rox"]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_piece_of_a_write_is_found(missing: int, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[2000] * 5), max_shard_bytes=12_000)
    paths = corpus.paths
    assert len(paths) == 5
    (tmp_path / "c_manifest.json").unlink()
    Path(paths[missing]).unlink()

    with pytest.raises(ShardError, match="missing") as caught:
        Roxxel(tmp_path / "c_*.rox").adopt()

    assert str(caught.value).startswith(str(tmp_path))
    assert not (tmp_path / "c_manifest.json").exists()


def test_a_damaged_shard_is_not_adopted(tmp_path: Path) -> None:
    bare(tmp_path, ["c_00000.rox", "c_00001.rox"])
    path = tmp_path / "c_00001.rox"
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)

    with pytest.raises(ShardError, match=r"c_00001\.rox: "):
        Roxxel(tmp_path / "c_*.rox").adopt()

    assert names_in(tmp_path) == ["c_00000.rox", "c_00001.rox"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"dtype": "uint16"}, "uint16"),
        ({"block_size": 512}, "512"),
        ({"metadata": {"separator": [3]}}, "separator"),
        ({"metadata": {"tokenizer": {"name": "gpt2"}}}, "tokenizer"),
    ],
)
def test_shards_that_differ_are_not_adopted(
    more: dict[str, Any], what: str, tmp_path: Path
) -> None:
    bare(tmp_path, ["c_00000.rox"])
    bare(tmp_path, ["c_00001.rox"], **more)

    with pytest.raises(ShardError, match=rf"c_00001\.rox: .*{what}"):
        Roxxel(tmp_path / "c_*.rox").adopt()


def test_what_is_no_bare_corpus_is_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "whole", [[1]])
    bare(tmp_path, ["one.rox"])
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Path, type[Exception]]] = [
        (Path(corpus.paths[0]), ValueError),
        (tmp_path / "whole", FileExistsError),
        (tmp_path / "whole" / "c_*.rox", FileExistsError),
        (tmp_path / "empty", FileNotFoundError),
        (tmp_path / "gone" / "c_*.rox", FileNotFoundError),
        (tmp_path / "one.rox", ValueError),
    ]

    for path, error in cases:
        with pytest.raises(error) as caught:
            Roxxel(path).adopt()
        assert str(tmp_path) in str(caught.value)
        assert "; " in str(caught.value)
    with pytest.raises(ValueError, match="s3://b/c_"):
        Roxxel("s3://b/c_*.rox").adopt()


@pytest.mark.parametrize("exist", ["keep", "append", "error"])
def test_a_write_refuses_shards_that_nobody_adopted(exist: Any, tmp_path: Path) -> None:
    bare(tmp_path, ["c_00000.rox"])

    with pytest.raises(ShardError, match=r"roxxel.format verify .*--adopt"):
        Roxxel(tmp_path / "c_*.rox").write([[7]], exist=exist)

    assert names_in(tmp_path) == ["c_00000.rox"]


@pytest.mark.parametrize("exist", ["error", "append", "keep"])
def test_no_write_takes_a_corpus_that_lost_its_manifest_for_leftovers(
    exist: Any, tmp_path: Path
) -> None:
    corpus_of(tmp_path, [[1], [2]])
    (tmp_path / "c_manifest.json").unlink()
    before = names_in(tmp_path)

    with pytest.raises(
        ShardError, match=r"no manifest lists it.*format verify .*--adopt"
    ):
        corpus_of(tmp_path, [[3]], exist=exist)

    assert names_in(tmp_path) == before


def test_a_write_is_interrupted_where_a_corpus_has_been_deleted(tmp_path: Path) -> None:
    corpus_of(tmp_path, [[1], [2]])
    for path in tmp_path.glob("c_*"):
        path.unlink()

    def interrupted() -> Iterator[Any]:
        yield from documents_of(*[1000] * 30)
        os._exit(7)

    assert in_child(lambda: corpus_of(tmp_path, interrupted())) == 7
    assert [*tmp_path.glob("c_*.rox")]

    assert corpus_of(tmp_path, [[3]]).num_tokens == 1


def test_a_disk_that_is_full_after_a_commit_makes_it_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)

    corpus = corpus_of(tmp_path, [[1], [2]])

    assert corpus.num_tokens == 2


def test_files_that_are_no_shards_are_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "c_00000.rox").write_bytes(b"AAAA" * 100)

    for use in (
        lambda: Roxxel(tmp_path / "c_*.rox").num_tokens,
        lambda: Roxxel(tmp_path / "c_*.rox").adopt(),
    ):
        with pytest.raises(ShardError, match=r"first Roxxel.*convert"):
            use()


def test_a_damaged_shard_without_a_manifest_is_named(tmp_path: Path) -> None:
    bare(tmp_path, ["c_00000.rox"])
    os.truncate(tmp_path / "c_00000.rox", 5000)

    with pytest.raises(ShardError, match=r"c_00000\.rox: "):
        _ = Roxxel(tmp_path / "c_*.rox").num_tokens
