"""A text is found in a corpus whatever stands beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from roxxel.search import find_text
from roxxel_format.texts import TextCodec

if TYPE_CHECKING:
    import numpy.typing as npt

PIECES = re.compile(r" ?[a-z]{1,3}|.", re.DOTALL)
"""The tokens of a text: a space is joined to the letters that follow, as in most."""

VOCABULARY = re.compile(r" ?(?:the|quick|brown|foxes|fox)| ?[a-z]|.")
"""The tokens of a text: what begins like a known word is other tokens than the word."""


def codec_of_pieces(
    pieces: re.Pattern[str] = PIECES, *, drops_space: bool = False
) -> TextCodec:
    """Return the codec of a tokenizer.

    With `drops_space`, a text gets a space before it, and loses it when it is decoded.
    """
    names: list[str] = []

    def encode(text: str) -> npt.NDArray[np.int64]:
        found = pieces.findall(f" {text}" if drops_space else text)
        names.extend(dict.fromkeys(each for each in found if each not in names))
        return np.array([names.index(each) for each in found], np.int64)

    def decode(tokens: npt.NDArray[Any]) -> bytes:
        text = "".join(names[token] for token in tokens)
        return (text.removeprefix(" ") if drops_space else text).encode()

    return TextCodec(encode, decode)


class Held:
    """A corpus of given tokens."""

    def __init__(self, tokens: npt.NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.num_tokens = tokens.size

    def read(self, starts: Any, length: int) -> Any:
        return np.stack([self.tokens[start : start + length] for start in starts])


def places(text: str, wanted: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the ranges of characters that were found, and the true beginnings."""
    codec = codec_of_pieces()
    tokens = codec.encode(text)
    sizes = [len(codec.decode(tokens[i : i + 1])) for i in range(tokens.size)]
    ends = [0, *np.cumsum(sizes).tolist()]
    corpus: Any = Held(tokens)
    found = [(ends[a], ends[b]) for a, b in find_text(corpus, codec, wanted)]
    starts = [i for i in range(len(text)) if text.startswith(wanted, i)]
    return found, starts


WORDS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=6, max_size=30)


@given(words=WORDS, start=st.integers(0, 40), length=st.integers(6, 30))
def test_a_text_is_found_each_time_whatever_its_first_and_last_tokens(
    words: list[str], start: int, length: int
) -> None:
    text = " ".join(words)
    wanted = text[start : start + length]
    assume(re.search(r" [a-z]+ ", wanted))

    found, starts = places(text, wanted)

    assert len(found) == len(starts)
    for (low, high), begin in zip(found, starts, strict=True):
        assert low <= begin
        assert begin + len(wanted) <= high
        # No more tokens than needed: each has at most a space and three letters.
        assert begin - low < 4
        assert high - begin - len(wanted) < 4


@pytest.mark.parametrize("wanted", ["quick brown fo", "uick brown fox", "own fox jum"])
def test_a_piece_of_a_line_is_found_as_a_person_copies_it(wanted: str) -> None:
    text = "(the quick brown fox jumps) the quiet brown fox"

    found, [begin] = places(text, wanted)

    [(low, high)] = found
    assert wanted in text[low:high]
    assert low <= begin


@pytest.mark.parametrize("drops_space", [False, True])
@pytest.mark.parametrize(
    "wanted", ["the quick brown fox", "he quick brown f", " the quick brown "]
)
def test_a_text_is_found_where_its_ends_are_in_the_tokens_of_longer_words(
    wanted: str, *, drops_space: bool
) -> None:
    codec = codec_of_pieces(VOCABULARY, drops_space=drops_space)
    tokens = codec.encode("see the quick brown foxes")

    corpus: Any = Held(tokens)
    [(low, high)] = find_text(corpus, codec, wanted)

    shown = codec.decode(tokens[low:high]).decode()
    assert shown.strip() == "the quick brown foxes"


def test_a_word_is_found_after_a_space_and_alone() -> None:
    assert places("the fox, fox", "fox")[0] == [(3, 7), (8, 12)]
    assert places("fox", "fox")[0] == [(0, 3)]


def test_a_text_that_is_not_there_is_not_found() -> None:
    assert places("the quick brown fox", "the quick green fox")[0] == []
    assert places("the quick brown fox", "he quick brown cat")[0] == []


def test_places_of_a_word_come_in_their_order() -> None:
    found, _ = places("fox, the fox, fox", "fox")

    assert found == sorted(found)
    assert len(found) == 3


def test_a_long_document_is_found_without_decoding_each_of_its_beginnings() -> None:
    codec = codec_of_pieces()
    text = "the quick brown fox " * 100
    tokens = codec.encode(text)
    decoded: list[int] = []

    def decode(part: npt.NDArray[Any]) -> bytes:
        decoded.append(part.size)
        return codec.decode(part)

    corpus: Any = Held(codec.encode(f"see {text}and more"))
    [found] = find_text(corpus, TextCodec(codec.encode, decode), text)

    assert found[1] - found[0] == tokens.size
    assert sum(size > tokens.size // 2 for size in decoded) < 100
