"""Finds a text, or an exact sequence of tokens, in a corpus, in bounded memory.

The text of a document is what its tokens decode to, without the separator: what
`roxxel format cat` prints. A text is compared with it byte by byte, so a search is
exact whatever tokens the text has. Where the text of tokens is their bytes one after
another, as for a byte-level BPE, many documents are searched at once. Elsewhere each
document is decoded, and only those with an occurrence are decoded again, token by
token, to find its tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel.config import separator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

CHUNK = 2**21
"""Tokens that are read at a time: at most 16 MiB."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()
"""How a codec shows a part of a character."""

_MOST_OF_ONE = 256
"""Tokens, at most, that are decoded together because none of them stands alone."""

_LEAST_CHUNK = 64
"""Tokens, at least, that are read at a time."""

_CACHED = 2**17
"""Number of short sequences of tokens whose text is kept."""


class Found(NamedTuple):
    """Occurrences that follow each other in a corpus.

    Attributes:
        documents: The document in which each begins; -1 in the padding of bins.
        ranges: Returns the tokens `[start, stop)` of each, shape `(n, 2)`. To count
            occurrences is much cheaper than to call this.

    Example:
        >>> Found(np.array([3]), lambda: np.array([[17, 20]])).documents.tolist()
        [3]
    """

    documents: npt.NDArray[np.int64]
    ranges: Callable[[], npt.NDArray[np.int64]]


def search(
    corpus: TokenReader,
    wanted: str | npt.ArrayLike,
    codec: TextCodec | None = None,
    progress: Callable[[int], object] | None = None,
    *,
    chunk: int = CHUNK,
) -> Iterator[Found]:
    """Yield the occurrences of a text or of token ids, in order, some at a time.

    Occurrences may overlap. Those of a text lie in one document each.

    Args:
        corpus: The corpus, which is read once.
        wanted: The text, or the ids.
        codec: The codec of a text; see `roxxel_format.texts.text_codec`.
        progress: Called with the number of tokens searched so far.
        chunk: Number of tokens that are read at a time; more for a very long text.

    Raises:
        TypeError: The ids are not a list of integers, or a text has no codec.
        ValueError: The text is empty, or there are no ids.

    Example:
        >>> from roxxel_format import Roxxel
        >>> from roxxel_format.texts import text_codec
        >>> corpus = Roxxel("twice.rox")
        >>> written = corpus.write([b"to be or not to be", b"be"])
        >>> found = list(search(corpus, "be", text_codec(corpus)))
        >>> sum(each.documents.size for each in found)
        3
    """
    if not isinstance(wanted, str):
        return _tokens_found(corpus, _parsed_ids(wanted), progress, chunk)
    if codec is None:
        raise TypeError("a text needs the codec of its corpus; pass codec")
    if not wanted:
        raise ValueError("the text to find is empty; give at least one character")
    content = wanted.encode(errors="surrogatepass")
    return _text_found(corpus, codec, content, progress, max(chunk, 4 * len(content)))


def find_tokens(
    corpus: TokenReader,
    tokens: npt.ArrayLike,
    progress: Callable[[int], object] | None = None,
    *,
    chunk: int = CHUNK,
) -> Iterator[int]:
    """Yield the token index at which each occurrence of a sequence begins, in order.

    Reads the whole corpus once, `chunk` tokens at a time. Occurrences may overlap.

    Args:
        corpus: The corpus to search.
        tokens: The sequence, at least one token.
        progress: Called with the number of tokens searched so far.
        chunk: Number of tokens that are read at a time.

    Raises:
        TypeError: The sequence is not a list of integers, but for example a text.
        ValueError: The sequence is empty.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> list(find_tokens(PositionReader(1000), [998, 999]))
        [998]
    """
    hits = _places(corpus, _parsed_ids(tokens), progress, chunk)
    return (hit for each in hits for hit in each.tolist())


def find_text(
    corpus: TokenReader,
    codec: TextCodec,
    text: str,
    progress: Callable[[int], object] | None = None,
    *,
    chunk: int = CHUNK,
) -> Iterator[tuple[int, int]]:
    """Yield the tokens `[start, stop)` of each occurrence of a text, in order.

    The search is exact: it compares your text, character by character, with the text
    that the tokens of each document decode to. So a tokenizer that changes texts, for
    example to lower case, has changed what you search. An occurrence has the fewest
    tokens that hold it. Its first and its last token may hold more than the text.

    Args:
        corpus: The corpus to search.
        codec: The codec of its text; see `roxxel_format.texts.text_codec`.
        text: The text, at least one character.
        progress: Called with the number of tokens searched so far.
        chunk: Number of tokens that are read at a time; more for a very long text.

    Raises:
        ValueError: The text is empty.

    Example:
        >>> from roxxel_format import Roxxel
        >>> from roxxel_format.texts import text_codec
        >>> corpus = Roxxel("bytes.rox")
        >>> written = corpus.write([b"to be or not to be"])
        >>> list(find_text(corpus, text_codec(corpus), "to be"))
        [(0, 5), (13, 18)]
    """
    hits = search(corpus, text, codec, progress, chunk=chunk)
    return ((start, stop) for each in hits for start, stop in each.ranges().tolist())


def _parsed_ids(tokens: npt.ArrayLike) -> npt.NDArray[Any]:
    wanted = np.asarray(tokens)
    if not wanted.size:
        raise ValueError("the sequence to find is empty; give at least one token")
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise TypeError(
            f"the sequence to find must be a list of token ids, got {tokens!r}; encode "
            "a text by roxxel_format.texts.text_codec(corpus).encode"
        )
    return wanted


def _tokens_found(
    corpus: TokenReader,
    wanted: npt.NDArray[Any],
    progress: Callable[[int], object] | None,
    chunk: int,
) -> Iterator[Found]:
    for hits in _places(corpus, wanted, progress, chunk):
        if hits.size:
            ranges = np.stack([hits, hits + wanted.size], axis=1)
            spans = corpus.document_spans(int(hits[0]), int(hits[-1]) + 1)
            documents = spans[spans[:, 1].searchsorted(hits, "right") - 1, 0]
            yield Found(documents, lambda ranges=ranges: ranges)


class _Window(NamedTuple):
    """Consecutive tokens of a corpus that are searched at once.

    Attributes:
        first: Index of the first token in the corpus.
        tokens: The tokens.
        lead: 1 if the first token is not searched, and only there because what the
            next one decodes to depends on it. Else 0.
        document: The document that holds them; None if several may.
    """

    first: int
    tokens: npt.NDArray[Any]
    lead: int
    document: int | None = None


class _Marks(NamedTuple):
    """Where the text of tokens ends, in bytes, after some counts of a window's tokens.

    Between two marks lie the tokens of one character, or a single token.
    """

    counts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def ranges(
        self, window: _Window, begins: npt.NDArray[np.int64], size: int
    ) -> npt.NDArray[np.int64]:
        """Return the tokens of the corpus that hold `size` bytes after each begin."""
        first = self.ends.searchsorted(begins, "right")
        last = self.ends.searchsorted(begins + size, "left")
        starts = np.concatenate([[window.lead], self.counts])[first]
        return window.first + np.stack([starts, self.counts[last]], axis=1)


class _Joined:
    """The text of tokens where it is their bytes one after another."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = np.array([*pieces, b""], object)

    def parts(self, window: _Window, contents: npt.NDArray[np.int64]) -> list[_Window]:
        """Return what to search at once: many documents, because it is faster."""
        del contents
        return [window]

    def text(self, window: _Window) -> bytes:
        return b"".join(self._of_each(window))

    def marks(self, window: _Window, num_bytes: int) -> _Marks:
        del num_bytes
        sizes = np.array([len(each) for each in self._of_each(window)], np.int64)
        return _Marks(np.arange(window.lead, window.tokens.size) + 1, sizes.cumsum())

    def cut(self, tokens: npt.NDArray[Any], least: int) -> int:
        del least
        return tokens.size

    def _of_each(self, window: _Window) -> list[bytes]:
        tokens = window.tokens[window.lead :].astype(np.int64, copy=False)
        # A token that the tokenizer lacks has no text, which is the last piece.
        return self._pieces.take(tokens, mode="clip").tolist()


class _Decoded:
    """The text of tokens where only their codec knows it."""

    def __init__(self, codec: TextCodec) -> None:
        self._decode = codec.decode
        self._of_few = lru_cache(_CACHED)(
            lambda tokens: codec.decode(np.array(tokens, np.int64))
        )

    def parts(
        self, window: _Window, contents: npt.NDArray[np.int64]
    ) -> Iterator[_Window]:
        """Yield what to search at once: a document, because decoders look around."""
        lead = window.lead
        for document, start, stop in contents.tolist():
            if document >= 0 and start < stop:
                tokens = window.tokens[
                    start - lead - window.first : stop - window.first
                ]
                yield _Window(start - lead, tokens, lead, document)
            lead = 0

    def text(self, window: _Window) -> bytes:
        before = self._decode(window.tokens[: window.lead]) if window.lead else b""
        return self._decode(window.tokens)[len(before) :]

    def marks(self, window: _Window, num_bytes: int) -> _Marks:
        tokens, text = tuple(window.tokens.tolist()), self.text(window)
        counts: list[int] = []
        ends: list[int] = []
        before, low, end = tokens[: window.lead], window.lead, 0
        while low < len(tokens) and end < num_bytes:
            high, size = len(tokens), len(text) - end
            for stop in range(low + 1, min(low + _MOST_OF_ONE, high) + 1):
                shown = self._of_few(before + tokens[low:stop])
                added = shown[len(self._of_few(before)) :]
                if text.startswith(added, end):
                    high, size = stop, len(added)
                    break
            group = tokens[low:high]
            # A token without a text does not count as one before the next.
            before = group if size else before + group
            low, end = high, end + size
            counts.append(low)
            ends.append(end)
        ends[-1] = len(text)
        return _Marks(np.array(counts), np.array(ends))

    def cut(self, tokens: npt.NDArray[Any], least: int) -> int:
        """Return a place, above `least` and near the end, that cuts no character."""

        def is_whole(place: int) -> bool:
            return _UNKNOWN not in self._of_few((int(tokens[place]),))

        places = range(max(least + 1, tokens.size - _MOST_OF_ONE), tokens.size)
        return max(
            places,
            key=lambda place: (is_whole(place - 1) + is_whole(place), place),
            default=tokens.size,
        )


def _text_found(
    corpus: TokenReader,
    codec: TextCodec,
    wanted: bytes,
    progress: Callable[[int], object] | None,
    chunk: int,
) -> Iterator[Found]:
    reader = _Decoded(codec) if codec.pieces is None else _Joined(codec.pieces())
    separator = separator_of(corpus)
    chunk = max(chunk, 4 * len(wanted), 4 * len(separator), _LEAST_CHUNK)
    start = lead = 0
    while start < corpus.num_tokens:
        spans, is_cut = _spans(corpus, start, chunk, len(separator))
        stop = int(spans[-1, 2])
        if stop < corpus.num_tokens:
            corpus.will_need([stop], min(chunk, corpus.num_tokens - stop))
        tokens = corpus.read([start - lead], stop - start + lead)[0]
        window = _Window(start - lead, tokens, lead)
        if is_cut:
            window = window._replace(document=int(spans[0, 0]))
            window, start, num_later = _cut(reader, window, len(wanted))
            parts = [window]
        else:
            spans[:, 2] -= _num_separators(window, spans, separator)
            start, num_later = stop, 0
            parts = reader.parts(window, spans)
        for part in parts:
            text = reader.text(part)
            begins = _begins(text, wanted, len(text) - num_later)
            if begins.size:
                yield _found(reader, part, begins, len(wanted), spans)
        lead = int(is_cut)
        if progress is not None:
            progress(start)


def _spans(
    corpus: TokenReader, start: int, chunk: int, num_separators: int
) -> tuple[npt.NDArray[np.int64], bool]:
    """Return whole documents from `start` on, of about `chunk` tokens.

    If one document is longer, return a part of it without its separator, and True.
    """
    stop = min(start + chunk, corpus.num_tokens)
    spans = corpus.document_spans(start, stop)
    if stop == corpus.num_tokens or len(corpus.document_spans(stop - 1, stop + 1)) > 1:
        return spans, False
    if len(spans) > 1:
        return spans[:-1], False
    spans[0, 2] -= num_separators
    return spans, True


def _num_separators(
    window: _Window, spans: npt.NDArray[np.int64], separator: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return how many tokens at the end of each document are its separator."""
    size = len(separator)
    ends_so = spans[:, 2] - spans[:, 1] >= size
    for offset, token in enumerate(separator):
        at = spans[:, 2] - size + offset - window.first
        ends_so &= window.tokens[np.maximum(at, 0)] == token
    return ends_so * size


def _cut(
    reader: _Joined | _Decoded, window: _Window, size: int
) -> tuple[_Window, int, int]:
    """Cut a part of a long document, for a text of `size` bytes.

    Returns:
        The part; the token of the corpus at which the next part begins, so that no
        occurrence is cut; and the number of bytes that both parts hold.
    """
    window = window._replace(
        tokens=window.tokens[: reader.cut(window.tokens, window.lead)]
    )
    tokens, back = window.tokens, size
    while True:
        low = max(tokens.size - back, window.lead + 1)
        place = reader.cut(tokens[:low], window.lead)
        num_later = len(reader.text(_Window(0, tokens[place - 1 :], 1)))
        if num_later >= size - 1 or place == window.lead + 1:
            return window, window.first + place, num_later
        back *= 2


def _begins(text: bytes, wanted: bytes, stop: int) -> npt.NDArray[np.int64]:
    """Return the places before `stop` at which the wanted bytes begin."""
    found: list[int] = []
    at = text.find(wanted)
    while 0 <= at < stop:
        found.append(at)
        at = text.find(wanted, at + 1)
    return np.array(found, np.int64)


def _found(
    reader: _Joined | _Decoded,
    part: _Window,
    begins: npt.NDArray[np.int64],
    size: int,
    contents: npt.NDArray[np.int64],
) -> Found:
    """Return the occurrences of `size` bytes that lie in one document."""

    def of_all() -> npt.NDArray[np.int64]:
        return reader.marks(part, int(begins[-1]) + size).ranges(part, begins, size)

    if part.document is not None:
        return Found(np.full(begins.size, part.document), of_all)
    ranges = of_all()
    holding = contents[contents[:, 1].searchsorted(ranges[:, 0], "right") - 1]
    is_inside = (ranges[:, 1] <= holding[:, 2]) & (holding[:, 0] >= 0)
    return Found(holding[is_inside, 0], lambda: ranges[is_inside])


def _places(
    corpus: TokenReader,
    wanted: npt.NDArray[Any],
    progress: Callable[[int], object] | None,
    chunk: int,
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield where a sequence begins, in order; one array for each chunk."""
    num_starts = corpus.num_tokens - wanted.size + 1
    for start in range(0, num_starts, chunk):
        count = min(chunk, num_starts - start)
        ahead = start + chunk
        if ahead < num_starts:
            length = min(chunk, num_starts - ahead) + wanted.size - 1
            corpus.will_need([ahead], length)
        held = corpus.read([start], count + wanted.size - 1)[0]
        found = np.flatnonzero(held[:count] == wanted[0])
        for offset in range(1, wanted.size):
            if not found.size:
                break
            found = found[held[found + offset] == wanted[offset]]
        yield start + found
        if progress is not None:
            progress(start + count)
