"""Find a text, or an exact sequence of tokens, in a corpus, in bounded memory.

The text of a document is the decoded text of all its tokens, with the names of special
tokens. The separator at its end is left out, except in a packed corpus. So the text is
what `roxxel format cat` prints. Bytes that are not UTF-8 count as U+FFFD. Your text is
compared byte by byte, so it is found exactly as often as it stands there.

If a document's text is just its tokens' bytes in a row (`Pieces`), a document is
searched in parts, and many documents at once. Neighbouring tokens of single bytes, such
as `<0xE2>`, stay together, because one wrong byte changes the text of all of them. A
few tokenizers have no such bytes: tokenizers of other libraries than `tokenizers` and
`tiktoken`, and those whose decoder changes texts across tokens, as for CTC. For them,
and to find U+FFFD itself, each document is decoded as a whole. Tokens that stay
together take about 100 bytes of memory each.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from roxxel_format.texts import Pieces, TextCodec

CHUNK = 2**21
"""Tokens that are read at a time: at most 16 MiB."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()
"""What a text shows for bytes that are not a character."""

_BETWEEN = b"\xff"
"""A mark before each document, which no text contains, so that no text is found across
two documents.
"""


class Found(NamedTuple):
    """Occurrences that follow each other in a corpus.

    Attributes:
        documents: The document in which each occurrence begins; -1 in the padding of
            bins.
        ranges: Returns the tokens `[start, stop)` of each occurrence, shape `(n, 2)`.
            Counting occurrences is much cheaper than calling this.

    Example:
        >>> Found(np.array([3]), lambda: np.array([[17, 20]])).documents.tolist()
        [3]
    """

    documents: npt.NDArray[np.int64]
    ranges: Callable[[], npt.NDArray[np.int64]]


def search(
    corpus: TokenReader,
    wanted: str | Sequence[int],
    codec: TextCodec | None = None,
    progress: Callable[[int], object] | None = None,
    *,
    chunk: int = CHUNK,
) -> Iterator[Found]:
    """Yield the occurrences of a text or of token ids, in order, some at a time.

    The search is exact: it compares your text, character by character, with the decoded
    text of all tokens of each document, in which special tokens show their names. So if
    a tokenizer changes texts, for example to lower case, search the changed text. An
    occurrence is the smallest range of tokens that contains it, or a small one if
    documents must be decoded as a whole. Its first and its last token may contain more.

    Occurrences may overlap. An occurrence of a text never crosses documents.

    Args:
        corpus: The corpus, which is read once.
        wanted: The text, or the ids; at least one character or id.
        codec: The codec of a text; see `roxxel_format.texts.text_codec`.
        progress: Called with the number of tokens searched so far.
        chunk: Number of tokens that are read at a time; more for a very long text.

    Raises:
        UnicodeEncodeError: The text cannot be written as UTF-8.

    Example:
        >>> from roxxel_format import Roxxel
        >>> from roxxel_format.texts import text_codec
        >>> corpus = Roxxel("bytes.rox")
        >>> written = corpus.write([b"to be or not to be", b"be"])
        >>> found = list(search(corpus, "be", text_codec(corpus)))
        >>> [each.documents.tolist() for each in found], found[0].ranges().tolist()
        ([[0, 0, 1]], [[3, 5], [16, 18], [18, 20]])
    """
    if codec is None:
        return _tokens_found(corpus, np.array(wanted), progress, chunk)
    content = str(wanted).encode()
    return _text_found(corpus, codec, content, progress, max(chunk, 4 * len(content)))


def _tokens_found(
    corpus: TokenReader,
    wanted: npt.NDArray[Any],
    progress: Callable[[int], object] | None,
    chunk: int,
) -> Iterator[Found]:
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
            found = found[held[found + offset] == wanted[offset]]
        if found.size:
            hits = start + found
            ranges = np.stack([hits, hits + wanted.size], axis=1)
            spans = corpus.document_spans(int(hits[0]), int(hits[-1]) + 1)
            documents = spans[spans[:, 1].searchsorted(hits, "right") - 1, 0]
            yield Found(documents, lambda ranges=ranges: ranges)
        if progress is not None:
            progress(start + count)


class _Held(NamedTuple):
    """Consecutive tokens of a corpus that are in memory.

    Places count in `tokens`.

    Attributes:
        first: Index of the first token in the corpus.
        tokens: The tokens.
        documents: Rows `(document, start, stop)`, without separators and padding.
        begins: Whether the start of each row is where its document begins.
        ends: Whether the stop of each row is where its document ends.
        is_last: Whether the corpus ends with these tokens.
        num_sure: Number of first tokens for which it is known whether they belong to a
            separator. The tokens after them may begin a separator that is not read yet.
    """

    first: int
    tokens: npt.NDArray[Any]
    documents: npt.NDArray[np.int64]
    begins: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    is_last: bool
    num_sure: int


def _text_found(
    corpus: TokenReader,
    codec: TextCodec,
    wanted: bytes,
    progress: Callable[[int], object] | None,
    chunk: int,
) -> Iterator[Found]:
    # Only the text of a whole document shows which of its bytes are no characters.
    pieces = None if _UNKNOWN in wanted else codec.pieces()
    first = stop = 0
    tokens = np.empty(0, np.uint8)
    while first < corpus.num_tokens:
        # Read twice as much where nothing could be searched yet.
        count = min(max(chunk, tokens.size), corpus.num_tokens - stop)
        read = corpus.read([stop], count)[0]
        tokens, stop = np.concatenate([tokens, read]), stop + count
        if stop < corpus.num_tokens:
            corpus.will_need([stop], min(chunk, corpus.num_tokens - stop))
        held = _held(corpus, first, tokens)
        if pieces is None:
            num_done, found = _in_documents(held, codec.decode, wanted)
        else:
            num_done, found = _in_pieces(held, pieces, wanted)
        yield from found
        first, tokens = first + num_done, tokens[num_done:]
        if progress is not None:
            progress(first)


def _held(corpus: TokenReader, first: int, tokens: npt.NDArray[Any]) -> _Held:
    # The documents of a packed corpus are parts of texts, in which a separator counts.
    separator = () if corpus.unit is not None else corpus.separator
    before, stop = max(first - 1, 0), first + tokens.size
    rows = corpus.document_spans(before, stop) - [0, first, first]
    is_last = stop == corpus.num_tokens
    # A document that reaches the last of these tokens perhaps goes on after it.
    ends = (rows[:, 2] < tokens.size) | is_last
    # The row of a document that began before `first` starts at -1.
    begins = (rows[:, 1] >= 0) | (first == 0)
    rows[:, 1] = rows[:, 1].clip(0)
    rows[:, 2] -= ends * _num_separators(rows, tokens, separator)
    is_here = (rows[:, 0] >= 0) & (rows[:, 2] >= rows[:, 1])
    num_sure = tokens.size if is_last else tokens.size - len(separator) - 1
    return _Held(
        first,
        tokens,
        rows[is_here],
        begins[is_here],
        ends[is_here],
        is_last,
        num_sure,
    )


def _num_separators(
    rows: npt.NDArray[np.int64], tokens: npt.NDArray[Any], separator: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return how many tokens at the end of each document are its separator."""
    size = len(separator)
    ends_so = rows[:, 2] - rows[:, 1] >= size
    for offset, token in enumerate(separator):
        at = rows[:, 2] - size + offset
        ends_so &= tokens[np.maximum(at, 0)] == token
    return ends_so * size


def _in_pieces(held: _Held, pieces: Pieces, wanted: bytes) -> tuple[int, list[Found]]:
    """Search many documents at once, by the bytes of their tokens.

    Returns:
        The number of finished tokens, and the occurrences that begin in them.
    """
    documents = held.documents
    starts = documents[held.begins, 1]
    ids = _without_others(held)
    (cuts,) = np.nonzero(pieces.may_cut(ids, starts)[: max(held.num_sure + 1, 1)])
    # Tokens that are not read yet may change the bytes after the last cut.
    stop = ids.size if held.is_last else int(cuts[-1])
    if not stop:
        return 0, []
    each = pieces.of(ids, starts, documents[held.ends, 2])[:stop]
    for start in starts[starts < stop].tolist():
        each[start] = _BETWEEN + each[start]
    # The next call searches the last bytes again: an occurrence that begins there may
    # end in tokens that are not read yet.
    num_done, bytes_again = stop, 0
    if not held.is_last:
        num_done, bytes_again = _overlap(each, cuts, len(wanted) - 1)
    if not num_done:
        return 0, []
    text = b"".join(each)
    begins = _begins(text, wanted, len(text) - bytes_again)
    if not begins.size:
        return num_done, []
    ends = np.fromiter(map(len, each), np.int64, stop).cumsum()
    first = ends.searchsorted(begins, "right")
    last = ends.searchsorted(begins + len(wanted), "left")
    ranges = held.first + np.stack([first, last + 1], axis=1)
    rows = documents[:, 1].searchsorted(first, "right") - 1
    return num_done, [Found(documents[rows, 0], lambda: ranges)]


def _overlap(
    pieces: Sequence[bytes], cuts: npt.NDArray[np.int64], num_bytes: int
) -> tuple[int, int]:
    """Return a late cut after which at least `num_bytes` follow, and how many do.

    If there is none, return 0, which is always one of the cuts.
    """
    back = num_bytes
    while True:
        before = cuts.searchsorted(max(len(pieces) - back, 0), "right")
        cut = int(cuts[before - 1])
        size = sum(map(len, pieces[cut:]))
        if size >= num_bytes or not cut:
            return cut, size
        back *= 2


def _without_others(held: _Held) -> npt.NDArray[np.int64]:
    """Return the tokens; those outside of documents get ids that no tokenizer has."""
    change = np.zeros(held.tokens.size + 1, np.int64)
    np.add.at(change, held.documents[:, 1], 1)
    np.add.at(change, held.documents[:, 2], -1)
    ids = held.tokens.astype(np.int64)
    ids[change[:-1].cumsum() == 0] = np.iinfo(np.int64).max
    return ids


def _in_documents(
    held: _Held, decode: Callable[[npt.NDArray[Any]], bytes], wanted: bytes
) -> tuple[int, list[Found]]:
    """Search one document after another, each decoded as a whole.

    Returns:
        The number of finished tokens, and the occurrences that begin in them.
    """
    rows, num_done = held.documents.tolist(), held.tokens.size
    if not held.is_last:  # The last document may go on.
        num_done = rows.pop()[1] if rows else 0
    found: list[Found] = []
    for document, start, stop in rows:
        tokens = held.tokens[start:stop]
        text = _shown(decode(tokens))
        begins = _begins(text, wanted, len(text))
        if begins.size:
            where = begins.tolist(), len(wanted), held.first + start
            ranges = partial(_ranges_in, decode, tokens, text, *where)
            found.append(Found(np.full(begins.size, document), ranges))
    return num_done, found


def _ranges_in(
    decode: Callable[[npt.NDArray[Any]], bytes],
    tokens: npt.NDArray[Any],
    text: bytes,
    begins: Sequence[int],
    size: int,
    first: int,
) -> npt.NDArray[np.int64]:
    """Return the tokens of the corpus that hold `size` bytes after each begin."""

    @cache
    def text_of(count: int) -> bytes:
        return _shown(decode(tokens[:count]))

    def num_tokens(num_bytes: int) -> int:
        """Return how many tokens of the document hold its first bytes."""
        counts, wanted = range(tokens.size), text[:num_bytes]
        return bisect_left(counts, True, key=lambda n: text_of(n).startswith(wanted))

    def range_of(begin: int) -> tuple[int, int]:
        start = num_tokens(begin + 1) - 1
        # Without its last token, a character has another text.
        while not text[:begin].startswith(text_of(start)):
            start -= 1
        return first + start, first + num_tokens(begin + size)

    return np.array([range_of(begin) for begin in begins])


def _shown(text: bytes) -> bytes:
    """Return a text with U+FFFD for bytes that are no characters."""
    return text.decode(errors="replace").encode()


def _begins(text: bytes, wanted: bytes, stop: int) -> npt.NDArray[np.int64]:
    found: list[int] = []
    at = text.find(wanted)
    while 0 <= at < stop:
        found.append(at)
        at = text.find(wanted, at + 1)
    return np.array(found, np.int64)
