"""Lengths are counted in parts of a shard, and over the borders of shards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel

from .helpers import documents_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lengths")


@given(
    lengths=st.lists(st.integers(0, 4000), min_size=1, max_size=8),
    at_once=st.integers(1, 5),
    exact=st.sampled_from([50, 2**20]),
    shard_bytes=st.sampled_from([7000, 2**20]),
)
def test_each_document_counts_once(
    folder: Path, lengths: list[int], at_once: int, exact: int, shard_bytes: int
) -> None:
    corpus = Roxxel(folder / "a_*.rox")
    corpus.write(
        documents_of(*lengths),
        dtype="uint16",
        block_size=64,
        max_shard_bytes=shard_bytes,
        exist="replace",
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roxxel_format._read.lengths._DOCUMENTS_AT_ONCE", at_once)
        patch.setattr("roxxel_format._read.lengths._EXACT", exact)
        found = corpus.document_lengths()

    assert (found.least, found.greatest) == (min(lengths), max(lengths))
    by_digits = Counter(length.bit_length() for length in lengths)
    assert {d: n for d, n in enumerate(found.counts) if n} == dict(by_digits)
    middle = sorted(lengths)[(len(lengths) + 1) // 2 - 1]
    assert found.percentiles[50] == (middle if middle < exact else max(lengths))
