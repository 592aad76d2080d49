"""A text is found exactly as often as it stands in the decoded documents."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel import Roxxel
from roxxel.runs.search import search
from roxxel_format import TokenReader
from roxxel_format.texts import text_codec

from .searched_tokenizers import END, SCRIPTS, TOKENIZERS, UNKNOWN, WHOLE, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from roxxel.runs.search import Found
    from roxxel_format.texts import TextCodec

EXTRA = "🙂👩‍🔬🇪🇹e\N{COMBINING ACUTE ACCENT}.,'!ÅB"

FORMS = ("NFC", "NFD")

SOME_BYTES = b"\xe2\x82\xac\xc3\xa9\xff\x80 a\xf0\x9f\x99\x82"


class Held(TokenReader):
    """A corpus of given documents, each with the separator."""

    def __init__(
        self, documents: Sequence[npt.ArrayLike], separator: Sequence[int] = ()
    ) -> None:
        self._separator = list(separator)
        held = [np.append(each, separator).astype(np.int64) for each in documents]
        self._tokens = np.concatenate(held)
        sizes = np.array([each.size for each in held], np.int64)
        self.stops = sizes.cumsum()
        self.starts = self.stops - sizes
        self.most = 0

    @property
    def num_tokens(self) -> int:
        return self._tokens.size

    @property
    def separator(self) -> Sequence[int]:
        return self._separator

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        return self.stops

    def read(self, starts: Any, length: int, dtype: Any = None, out: Any = None) -> Any:
        assert dtype is out is None
        assert starts[0] + length <= self.num_tokens
        self.most = max(self.most, length)
        return np.stack([self._tokens[start : start + length] for start in starts])


@cache
def codec_of(kind: str) -> tuple[Any, TextCodec]:
    """Return a tokenizer, and its codec for a corpus that was written elsewhere."""
    tokenizer = TOKENIZERS[kind]()
    recorded: Any = SimpleNamespace(
        tokenizer=None,
        dtype_name="uint8" if tokenizer is None else "uint32",
        arguments={},
        documents=[],
        tokenizer_files={},
    )
    codec = text_codec(recorded, tokenizer)
    assert codec is not None
    return tokenizer, codec


def a_word(chosen: random.Random) -> str:
    letters = chosen.choice(SCRIPTS)
    if chosen.random() < 0.1:
        letters += EXTRA
    return "".join(chosen.choices(letters, k=chosen.randint(1, 8)))


@cache
def words() -> list[str]:
    chosen = random.Random(5)
    return [a_word(chosen) for _ in range(500)]


def documents(codec: TextCodec, size: int) -> list[list[int]]:
    """Return documents of words, of any tokens, and of bytes that may spell none."""
    chosen = random.Random(6)
    between = [" ", " ", " ", " ", "\n", ", ", "  ", "", "\t(", '. "', END]
    made = [
        "".join(
            part
            for word in chosen.choices(words(), k=count)
            for part in (word, chosen.choice(between))
        )
        for count in (1, 4, 9, 60)
    ]
    # Some decoders strip what a text begins with.
    made += [unicodedata.normalize("NFD", made[2]), "  a é a"]
    rows = [codec.encode(text).tolist() for text in made]
    # In tokenizers with a fallback to bytes, these are the first tokens.
    spelled = list("éa€🙂".encode() * 40)
    # Most tokenizers lack the last id.
    apart = [each for byte in spelled for each in (byte, size - 1)]
    any_ids = [chosen.choices(range(size), k=n) for n in (1, 2, 99)]
    return [*rows, [], spelled, [*spelled, 255], apart, *any_ids, rows[0][:1]]


def ranges_of(found: Iterable[Found]) -> list[tuple[int, int]]:
    pairs = (pair for each in found for pair in each.ranges().tolist())
    return [(start, stop) for start, stop in pairs]


def times(wanted: str, text: str) -> int:
    """Return how often a text stands in another; occurrences may overlap."""
    return len(re.findall(f"(?={re.escape(wanted)})", text))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_any_word_is_found_as_often_as_it_stands_in_the_decoded_text(kind: str) -> None:
    tokenizer, codec = codec_of(kind)
    rows = documents(codec, TOKENIZERS[kind].size)
    corpus: Any = Held(rows)
    texts = [decoded(tokenizer, row) for row in rows]
    joined = "\ud800".join(texts)
    chosen = random.Random(8)

    def piece() -> str:
        text = chosen.choice([text for text in texts if text])
        at = chosen.randrange(len(text))
        return text[at : at + chosen.randint(1, 30)]

    wanted = [*words()[::4], *(piece() for _ in range(60))]
    for word in words()[:10]:
        wanted += [f"{word} ", *(unicodedata.normalize(f, word) for f in FORMS)]
    for number, each in enumerate([*wanted, " ", "\n", "  ", END, "\ufffd", *"aé€"]):
        # In tiny parts, documents are cut everywhere.
        chunk = 1 if number % 16 == 0 else 400

        found = list(search(corpus, each, codec, chunk=chunk))

        assert sum(part.documents.size for part in found) == times(each, joined), each


def document(size: int) -> st.SearchStrategy[list[int]]:
    """Return documents of any tokens, some of which stand there many times."""
    some = st.lists(ids(size), max_size=20)
    return st.builds(lambda a, b, n: [*a, *b * n], some, some, st.integers(1, 99))


def ids(size: int) -> st.SearchStrategy[int]:
    # Many are parts of characters where the first tokens are bytes.
    return st.one_of(
        st.sampled_from([32, 97, size - 1, *SOME_BYTES]), st.integers(0, size - 1)
    )


@settings(deadline=None)
@given(
    kind=st.sampled_from(list(TOKENIZERS)),
    place=st.tuples(st.integers(0, 9), st.integers(0, 400), st.integers(1, 9)),
    chunk=st.integers(1, 90),
    num_separators=st.integers(0, 2),
    drawn=st.data(),
)
def test_documents_of_any_tokens_are_searched_as_their_decoded_text(
    kind: str,
    place: tuple[int, int, int],
    chunk: int,
    num_separators: int,
    drawn: st.DataObject,
) -> None:
    tokenizer, codec = codec_of(kind)
    size = TOKENIZERS[kind].size
    rows = drawn.draw(st.lists(document(size), min_size=1, max_size=5))
    end = [size - 1] * num_separators
    corpus: Any = Held(rows, end)
    texts = [decoded(tokenizer, row) for row in rows]
    number, at, length = place
    text = texts[number % len(rows)]
    wanted = text[at % max(len(text), 1) :][:length] or " "

    parts = list(search(corpus, wanted, codec, chunk=chunk))
    found = ranges_of(parts)

    documents = [int(each) for part in parts for each in part.documents]
    assert documents == [
        number for number, each in enumerate(texts) for _ in range(times(wanted, each))
    ]
    assert len(found) == len(documents)
    assert found == sorted(found)
    for (start, stop), document_number in zip(found, documents, strict=True):
        first, last = corpus.starts[document_number], corpus.stops[document_number]
        assert first <= start < stop <= last - len(end)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_an_occurrence_has_the_fewest_tokens_that_hold_it(kind: str) -> None:
    tokenizer, codec = codec_of(kind)
    row = codec.encode(" ".join(words()[:25])).tolist()
    corpus: Any = Held([row])
    text = decoded(tokenizer, row)
    for at in range(0, len(text) - 9, 7):
        wanted = text[at : at + 9].lstrip()
        begins = [
            each.start() for each in re.finditer(f"(?={re.escape(wanted)})", text)
        ]

        found = ranges_of(search(corpus, wanted, codec, chunk=64))

        for begin, (start, stop) in zip(begins, found, strict=True):
            before, later, less, enough = (
                decoded(tokenizer, row[:n]) for n in (start, start + 1, stop - 1, stop)
            )
            end = text[: begin + len(wanted)]
            assert text[:begin].startswith(before.rstrip("\ufffd"))
            assert f"{enough} ".startswith(end)
            if kind not in WHOLE:
                assert not text.startswith(later) or len(later) > begin
                assert not less.startswith(end)


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind not in WHOLE])
def test_a_long_document_is_read_and_searched_in_parts(kind: str) -> None:
    _, codec = codec_of(kind)
    corpus: Any = Held([codec.encode(" ".join(words())).tolist() * 2])
    seen: list[int] = []

    list(search(corpus, "a", codec, seen.append, chunk=256))

    assert corpus.most == 256
    assert seen == sorted(set(seen))
    assert np.diff([0, *seen]).max() < 600
    assert seen[-1] == corpus.num_tokens


@pytest.mark.parametrize("kind", ["bytes", "suffix", "WordPiece", "another library"])
@pytest.mark.parametrize("end", ["|", "||", "s|"])
def test_the_text_of_a_separator_is_not_searched(kind: str, end: str) -> None:
    tokenizer, codec = codec_of(kind)
    rows = [codec.encode("s|s" * n).tolist() for n in range(1, 30)]
    corpus: Any = Held(rows, codec.encode(end).tolist())
    texts = [decoded(tokenizer, row) for row in rows]

    texts_wanted = ("|", "s|", "|s", "ss", " ", "s", UNKNOWN)
    # A part ends before, in and after a separator.
    for wanted, chunk in product(texts_wanted, range(64, 80, 4)):
        found = search(corpus, wanted, codec, chunk=chunk)

        assert sum(part.documents.size for part in found) == times(
            wanted, "\0".join(texts)
        )


@pytest.mark.parametrize("options", [{"pack": 256}, {"max_shard_bytes": 18800}])
@pytest.mark.parametrize("kind", ["bytes", "WordPiece"])
def test_the_documents_of_a_written_corpus_are_searched(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer, _ = codec_of(kind)
    texts = [" ".join(words()[n : 3 * n]) for n in range(0, 170, 9)]
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(texts, tokenizer=tokenizer, separator=END, **options)
    held = [decoded(tokenizer, each.tolist()) for each in corpus.documents]
    codec = text_codec(corpus, tokenizer)

    for wanted in (*words()[:20], " ", "a", END, "\ufffd"):
        found = list(search(corpus, wanted, codec, chunk=300))

        expected = times(wanted, "\0".join(held))
        assert sum(part.documents.size for part in found) == expected


@given(
    st.lists(
        st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=5
    ),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_a_sequence_is_found_wherever_it_stands(
    documents: list[list[int]], wanted: list[int], chunk: int
) -> None:
    corpus = Held([np.array(each) for each in documents])
    tokens = [token for each in documents for token in each]
    windows = [tokens[i : i + len(wanted)] for i in range(len(tokens))]
    places = [i for i, window in enumerate(windows) if window == wanted]
    of_token = np.repeat(np.arange(len(documents)), [len(each) for each in documents])

    seen: list[int] = []
    parts = list(search(corpus, wanted, progress=seen.append, chunk=chunk))

    assert ranges_of(parts) == [(place, place + len(wanted)) for place in places]
    found = [int(each) for part in parts for each in part.documents]
    assert found == of_token[places].tolist()
    assert corpus.most <= chunk + len(wanted) - 1
    assert seen == sorted(seen)
    num_starts = len(tokens) - len(wanted) + 1
    assert seen[-1:] == [num_starts] * (num_starts > 0)


def test_occurrences_may_overlap() -> None:
    _, codec = codec_of("bytes")
    corpus: Any = Held([list(b"aaaa")])

    assert ranges_of(search(corpus, "aa", codec)) == [(0, 2), (1, 3), (2, 4)]


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback", "another library"])
def test_a_text_that_is_longer_than_what_is_read_at_a_time_is_found(kind: str) -> None:
    tokenizer, codec = codec_of(kind)
    text = " ".join(words()[:200])
    row = codec.encode(f"see {text} and more").tolist()
    corpus: Any = Held([row[:9], row])
    wanted = decoded(tokenizer, row)[3:-3]

    [(start, stop)] = ranges_of(search(corpus, wanted, codec, chunk=1))

    assert 9 <= start < 15
    assert len(row) <= stop <= 9 + len(row)
