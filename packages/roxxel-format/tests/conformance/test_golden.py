from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel

from .make_golden import APPENDED, CASES, SEPARATOR
from .reader import read_column, read_corpus, read_shard

GOLDEN = Path(__file__).parent / "v1"
MANIFEST = Path(__file__).parent / "manifest_v1" / "g_manifest.json"
VERSIONS = ["7101fd767446f61c02adadc8737f4206", "3f6418f21fc05c0cd56b873a105d9bde"]
FINGERPRINTS = {
    "uint16": "8ca86ba937c2b54bc49d4c6319115c67",
    "int64": "2671842754cdad9e0257abe7b526ec0b",
    "float32": "91e2ce1380560000e6c89b533f50b546",
    "bool": "93cf6d025503737367b62538fabfe2c6",
    "uint8": "55c65cbfcfe57382f144423c48eace03",
    "bfloat16": "5306c8bbc4a35d473c4c66ef2373498f",
    "large_*": "ebe9f20f8768944a6e1ef0a48f7a48ce",
}


def as_bits(tokens: Any) -> Any:
    return tokens if tokens.dtype.kind in "biuf" else tokens.view(np.uint16)


def expected(name: str) -> list[Any]:
    documents, _ = CASES[name]
    return [
        np.frombuffer(each.encode(), np.uint8) if isinstance(each, str) else each
        for each in documents
    ]


@pytest.mark.parametrize("name", CASES)
def test_golden_corpora_read_as_they_were_written(name: str) -> None:
    # The golden shards have no manifest, so they are named one by one.
    paths = sorted(GOLDEN.glob(f"{name}.rox"))
    corpus = Roxxel(paths, check="blocks")

    assert corpus.verify().ok
    assert [as_bits(each).tolist() for each in corpus.documents] == [
        np.asarray(each).tolist() for each in expected(name)
    ]
    assert corpus.fingerprint == FINGERPRINTS[name]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.rox")), ids=lambda p: p.name)
def test_a_reader_written_from_the_specification_agrees(path: Path) -> None:
    tokens, documents, metadata = read_shard(path)

    corpus = Roxxel(path)
    assert as_bits(corpus.tokens[:]).tobytes() == tokens.tobytes()
    assert len(documents) == len(corpus.documents)
    for ours, theirs in zip(corpus.documents, documents, strict=True):
        assert as_bits(ours).tobytes() == theirs.tobytes()
    assert corpus.metadata == metadata


@given(
    documents=st.lists(st.lists(st.integers(0, 2**16 - 1)), min_size=1),
    separator=st.none() | st.integers(0, 2**16 - 1),
    exponent=st.integers(9, 12),
)
def test_new_shards_are_as_specified(
    documents: list[list[int]],
    separator: int | None,
    exponent: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.rox"
    Roxxel(path).write(documents, separator, block_size=2**exponent, dtype=np.uint16)

    tokens, found, _ = read_shard(path)

    assert [each.tolist() for each in found] == documents
    end = [] if separator is None else [separator]
    assert tokens.tolist() == [t for each in documents for t in [*each, *end]]


@pytest.mark.parametrize("version", [0, 1])
def test_the_golden_manifest_reads_as_it_was_written(version: int) -> None:
    expected = [each for part in APPENDED[: version + 1] for each in part]

    corpus = Roxxel(MANIFEST.parent, version=VERSIONS[version], check="blocks")

    assert corpus.versions == VERSIONS
    assert corpus.fingerprint == VERSIONS[version]
    assert corpus.verify().ok
    assert [each.tolist() for each in corpus.documents] == expected
    line = [token for each in expected for token in [*each, SEPARATOR]]
    assert corpus.tokens[:].tolist() == line
    assert corpus.column("even")[:].tolist() == [token % 2 == 0 for token in line]
    names = [f"n{number}".encode() for number in range(len(expected))]
    assert corpus.column("name")[:].tolist() == names


@pytest.mark.parametrize("version", [0, 1])
def test_a_manifest_reader_written_from_the_specification_agrees(version: int) -> None:
    tokens, documents = read_corpus(MANIFEST, version)

    corpus = Roxxel(MANIFEST.parent / "g_*.rox", version=VERSIONS[version])
    assert corpus.tokens[:].tobytes() == tokens.tobytes()
    assert [each.tolist() for each in corpus.documents] == [
        each.tolist() for each in documents
    ]
    newest = Roxxel(MANIFEST.parent)
    for name in ("even", "name"):
        found = read_column(MANIFEST, name)
        assert newest.column(name)[:].tolist() == found.tolist()
