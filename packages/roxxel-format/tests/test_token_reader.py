"""A reader of one's own: two members, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, TokenReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


class Held(TokenReader):
    """A corpus in memory, with the two members that every reader needs."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._held = np.array(tokens, np.uint16)

    @property
    def num_tokens(self) -> int:
        return self._held.size

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        tokens = self._held[np.asarray(starts)[:, None] + np.arange(length)]
        if out is None:
            return tokens.astype(dtype or tokens.dtype)
        out[...] = tokens
        return out


class Cut(Held):
    """The same with documents of given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(range(1, sum(lengths) + 1))
        self._ends = np.cumsum(lengths, dtype=np.int64)

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        return self._ends


def test_two_members_give_all_others() -> None:
    reader = Held([5, 6, 7, 8])

    assert reader.dtype == np.uint16
    assert reader.tokens[1:3].tolist() == [6, 7]
    assert [each.tolist() for each in reader.documents] == [[5, 6, 7, 8]]
    assert reader.document_spans(1, 3).tolist() == [[0, 1, 3]]
    assert reader.document_name(0) is None
    assert reader.find_documents("web/1") == []
    out = np.zeros((3, 2), np.int32)
    reader.read_into([2, 0], out, [2, 0])
    assert out.tolist() == [[5, 6], [0, 0], [7, 8]]
    with pytest.raises(IndexError, match="leaves the corpus of 4 tokens"):
        reader.will_need([3], 2)
    with pytest.raises(ShardError, match="has no column 'loss_mask'"):
        reader.column("loss_mask")


def test_a_fingerprint_tells_tokens_and_documents_apart() -> None:
    readers = [Held([5, 6]), Held([5, 7]), Held([5, 6, 6]), Cut([1, 1]), Cut([2])]

    found = [each.fingerprint for each in readers]

    assert len({*found}) == len(found)
    assert Held([5, 6]).fingerprint == found[0]
    assert readers[0].versions == [found[0]]
    assert readers[0].with_version(found[0]) is readers[0]
    with pytest.raises(ShardError, match=f"has no version {found[1]}"):
        readers[0].with_version(found[1])


def test_a_reader_without_checksums_says_so() -> None:
    reader = Held([5])

    assert reader.with_check("headers") is reader
    with pytest.raises(ValueError, match="a Held has no checksums; write the corpus"):
        reader.with_check("blocks")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_ends_of_documents_give_their_spans(
    lengths: list[int], data: st.DataObject
) -> None:
    reader = Cut(lengths)
    start = data.draw(st.integers(0, reader.num_tokens))
    stop = data.draw(st.integers(start, reader.num_tokens))

    spans = reader.document_spans(start, stop).tolist()

    owner = np.repeat(np.arange(len(lengths)), lengths)
    assert [d for d, a, b in spans for _ in range(a, b)] == owner[start:stop].tolist()
    assert [a for _, a, _ in spans] == [start, *(b for *_, b in spans)][: len(spans)]
    documents = [each.tolist() for each in reader.documents]
    assert [len(each) for each in documents] == lengths
    assert np.concatenate(documents).tolist() == reader.tokens[:].tolist()


def test_a_class_that_lacks_a_member_cannot_be_used() -> None:
    class Half(TokenReader):
        @property
        def num_tokens(self) -> int:
            return 5

    with pytest.raises(TypeError, match=r"abstract.*read"):
        Half()  # pyright: ignore[reportAbstractUsage]


def test_spans_of_documents_have_one_definition() -> None:
    with pytest.raises(TypeError, match="Twice defines document_spans, which follows"):
        type("Twice", (Held,), {"document_spans": None})


def test_a_new_read_is_never_passed_by(tmp_path: Path) -> None:
    class Shifted(Roxxel):
        def read(
            self, starts: Any, length: int, dtype: Any = None, out: Any = None
        ) -> Any:
            return super().read(starts, length, dtype, out) + 1

    Roxxel(tmp_path).write([[5, 6, 7]], dtype="uint16")
    out = np.zeros((2, 2), np.int32)

    Shifted(tmp_path).read_into([1], out, [1])

    assert out.tolist() == [[0, 0], [7, 8]]
