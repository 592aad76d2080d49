"""A text is found in a corpus whatever stands beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel.search import find_text, search
from roxxel_format.texts import TextCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

PIECES = re.compile(r" ?[a-z]{1,3}|.", re.DOTALL)
"""The tokens of a text: a space is joined to the letters that follow, as in most."""


def codec_of_pieces(
    pieces: re.Pattern[str] = PIECES,
    *,
    drops_space: bool = False,
    is_joined: bool = False,
) -> TextCodec:
    """Return the codec of a tokenizer.

    With `drops_space`, a text gets a space before it, and loses it when it is decoded.
    With `is_joined`, the codec says that the text of tokens is that of each.
    """
    names: list[str] = []

    def encode(text: str) -> npt.NDArray[np.int64]:
        found = pieces.findall(f" {text}" if drops_space else text)
        names.extend(dict.fromkeys(each for each in found if each not in names))
        return np.array([names.index(each) for each in found], np.int64)

    def decode(tokens: npt.NDArray[Any]) -> bytes:
        text = "".join(names[token] for token in tokens)
        return (text.removeprefix(" ") if drops_space else text).encode()

    joined = (lambda: [name.encode() for name in names]) if is_joined else None
    return TextCodec(encode, decode, pieces=joined)


class Held:
    """A corpus of given documents, each with the separator."""

    def __init__(
        self, *documents: npt.NDArray[np.int64], separator: tuple[int, ...] = ()
    ) -> None:
        self.separator = separator
        ends = np.array(separator, np.int64)
        held = [np.concatenate([each, ends]) for each in documents]
        self.tokens = np.concatenate(held)
        self.num_tokens = self.tokens.size
        sizes = np.array([each.size for each in held], np.int64)
        self.stops = sizes.cumsum()
        self.starts = self.stops - sizes

    def will_need(self, starts: Any, length: int) -> None:
        assert 0 <= starts[0] <= starts[0] + length <= self.num_tokens

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        held = np.arange(self.stops.size), self.starts, self.stops
        spans = np.stack(held, axis=1)
        spans[:, 1:] = spans[:, 1:].clip(start, stop)
        return spans[spans[:, 1] < spans[:, 2]]

    def read(self, starts: Any, length: int) -> Any:
        return np.stack([self.tokens[start : start + length] for start in starts])


def expected(texts: Sequence[str], wanted: str) -> list[int]:
    """Return the document of each occurrence, in order."""
    return [
        number
        for number, text in enumerate(texts)
        for at in range(len(text))
        if text.startswith(wanted, at)
    ]


TEXTS = st.lists(st.text("ab  c\nß", max_size=90), min_size=1, max_size=8)


@given(
    texts=TEXTS,
    wanted=st.one_of(st.text("ab cß", min_size=1, max_size=5), st.none()),
    place=st.tuples(st.integers(0, 7), st.integers(0, 90), st.integers(1, 40)),
    chunk=st.integers(1, 300),
    separator=st.sampled_from([(), (0,), (0, 1)]),
    kind=st.sampled_from(["joined", "decoded", "drops the first space"]),
)
def test_a_text_is_found_each_time_it_stands_in_a_document_and_nowhere_else(
    texts: list[str],
    wanted: str | None,
    place: tuple[int, int, int],
    chunk: int,
    separator: tuple[int, ...],
    kind: str,
) -> None:
    codec = codec_of_pieces(
        drops_space=kind == "drops the first space", is_joined=kind == "joined"
    )
    codec.encode("a b")  # the separators decode to something
    held = [codec.encode(text) for text in texts]
    corpus: Any = Held(*held, separator=separator)
    if wanted is None:
        number, start, length = place
        wanted = texts[number % len(texts)][start : start + length] or "a"

    parts = list(search(corpus, wanted, codec, chunk=chunk))
    found = list(find_text(corpus, codec, wanted, chunk=chunk))

    documents = [int(each) for part in parts for each in part.documents]
    assert documents == expected(texts, wanted)
    assert len(found) == len(documents)
    assert found == sorted(found)
    for (start, stop), document in zip(found, documents, strict=True):
        first, last = corpus.starts[document], corpus.stops[document]
        assert first <= start < stop <= last - len(separator)
        held_text = texts[document]
        low = len(codec.decode(corpus.tokens[first:start]).decode())
        high = len(codec.decode(corpus.tokens[first:stop]).decode())
        assert wanted in held_text[low:high]
        # No more tokens than needed: each has at most a space and three letters.
        assert high - low - len(wanted) <= 6


def test_the_text_of_a_separator_is_not_searched() -> None:
    codec = codec_of_pieces()
    end = tuple(codec.encode("|").tolist())
    corpus: Any = Held(codec.encode("a|b"), codec.encode("c"), separator=end)

    assert list(find_text(corpus, codec, "|")) == [(1, 2)]
    assert list(find_text(corpus, codec, "b|c")) == []


def test_occurrences_may_overlap() -> None:
    codec = codec_of_pieces(re.compile("."))
    corpus: Any = Held(codec.encode("aaaa"))

    assert list(find_text(corpus, codec, "aa")) == [(0, 2), (1, 3), (2, 4)]


def test_a_text_is_compared_exactly() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    codec = codec_of_pieces()
    corpus: Any = Held(codec.encode(f"{composed} Caf\u00e9"))

    assert len(list(find_text(corpus, codec, composed))) == 1
    assert list(find_text(corpus, codec, decomposed)) == []


def test_an_empty_text_is_refused() -> None:
    corpus: Any = Held(np.arange(3))

    with pytest.raises(ValueError, match="the text to find is empty"):
        find_text(corpus, codec_of_pieces(), "")


def test_a_text_that_is_longer_than_what_is_read_at_a_time_is_found() -> None:
    codec = codec_of_pieces()
    text = "".join(f"{n} brown foxes, " for n in range(300))
    corpus: Any = Held(codec.encode(f"see {text}and more"))
    seen: list[int] = []

    [(start, stop)] = find_text(corpus, codec, text, seen.append, chunk=1)

    assert text in codec.decode(corpus.tokens[start:stop]).decode()
    assert stop - start <= codec.encode(text).size + 1
    assert seen == sorted(seen)
    assert seen[-1] == corpus.num_tokens
