from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel

from .make_golden import CASES
from .reader import read_shard

GOLDEN = Path(__file__).parent / "v1"
FINGERPRINTS = {
    "uint16": "8ca86ba937c2b54bc49d4c6319115c67",
    "int64": "2671842754cdad9e0257abe7b526ec0b",
    "float32": "91e2ce1380560000e6c89b533f50b546",
    "bool": "93cf6d025503737367b62538fabfe2c6",
    "uint8": "55c65cbfcfe57382f144423c48eace03",
    "bfloat16": "5306c8bbc4a35d473c4c66ef2373498f",
    "split_*": "b124a932f75da1ca433947a9cf4b3bce",
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
    corpus = Roxxel(GOLDEN / f"{name}.rox", check="blocks")

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
