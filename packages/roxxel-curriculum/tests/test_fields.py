"""What a batch may hold beside its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader

FIELDS = ("tokens", "segment_ids", "positions", "source")


def blended(document_tokens: int = 30) -> Curriculum:
    return Curriculum(
        PositionReader(5000, "a", document_tokens=document_tokens),
        [Phase(20, 6, 64, {"self": 1, "code": 1})],
        {"code": PositionReader(5000, "b", document_tokens=7)},
    )


@settings(deadline=None)
@given(document_tokens=st.integers(1, 200), step=st.integers(0, 19))
def test_segments_count_documents_and_positions_restart_in_each(
    document_tokens: int, step: int
) -> None:
    sampler = blended(document_tokens).sampler(1, fields=FIELDS)

    batch = sampler.batch(step)

    windows = sampler.windows(step)
    for row in range(6):
        size = (document_tokens, 7)[int(windows.source[row])]
        at = np.arange(int(windows.start[row]), int(windows.stop[row]))
        document = at // size
        begins = np.maximum(document * size, at[0])
        assert np.array_equal(batch["tokens"][row], at)
        assert np.array_equal(batch["segment_ids"][row], document - document[0] + 1)
        assert np.array_equal(batch["positions"][row], at - begins)
        assert np.array_equal(batch["source"][row], np.full(64, windows.source[row]))
    assert list(batch) == list(FIELDS)
    assert {part.dtype for part in batch.values()} == {np.dtype(np.int32)}


@settings(deadline=None)
@given(data=st.data())
def test_rows_and_columns_of_fields_are_those_of_the_batch(data: st.DataObject) -> None:
    sampler = blended().sampler(1, fields=FIELDS)
    batch = sampler.batch(3)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, 64)] * 2)))
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, 6)] * 2)))

    part = sampler.rows(3, slice(low, high), slice(start, stop))

    for name in FIELDS:
        assert np.array_equal(part[name], batch[name][low:high, start:stop])


def test_one_field_alone_beside_tokens_is_still_a_dict() -> None:
    assert list(blended().sampler(1, fields=["positions"]).batch(0)) == ["positions"]
    assert isinstance(blended().sampler(1, fields=["tokens"]).batch(0), np.ndarray)


def test_an_unknown_field_is_named() -> None:
    wrong: list[Any] = ["tokens", "segments"]
    with pytest.raises(TypeError, match=r"a list of names, got \{'tokens': 4\}"):
        blended().sampler(1, fields={"tokens": 4})  # pyright: ignore[reportCallIssue, reportArgumentType] - a dict iterates over its keys
    with pytest.raises(ValueError, match="unknown field 'segments'; the fields are"):
        blended().sampler(1, fields=wrong)
    with pytest.raises(TypeError, match="a list of names"):
        blended().sampler(1, fields="tokens")  # pyright: ignore[reportCallIssue, reportArgumentType] - the point
    with pytest.raises(ValueError, match="at least one field"):
        blended().sampler(1, fields=())


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("uint8", "int32"),
        ("uint16", "int32"),
        ("int64", "int32"),
        ("float32", "float32"),
        ("float16", "float16"),
    ],
)
def test_integers_become_int32_and_other_kinds_stay(stored: str, expected: str) -> None:
    source = PositionReader(5000, dtype=stored)
    sampler = Curriculum(source, [Phase(3, 2, 9)]).sampler(1)

    assert sampler.dtype == np.dtype(expected)
    assert sampler.batch(0).dtype == np.dtype(expected)
    assert sampler.rows(0, slice(0, 1)).dtype == np.dtype(expected)
    assert sampler.rows(0, slice(0, 0)).shape == (0, 9)
