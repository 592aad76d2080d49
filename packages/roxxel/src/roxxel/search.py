"""Finds a text, or an exact sequence of tokens, in a corpus, in bounded memory."""

from __future__ import annotations

import re
from bisect import bisect_left
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from roxxel_format.texts import TextCodec

_BEFORE, _AFTER = (" ", "\n", "x", "("), (" ", "\n", "x", ".")
"""Texts that may stand beside a text and change its first or last tokens."""

_MARGIN = 8
"""Tokens on each side of an occurrence in which its first and last tokens may lie."""

_PARTS = 4
"""Tokens, at most, that together stand for one character of UTF-8."""

_INNER_WORDS = re.compile(rb"\s*\S+((?:\s+\S+)*?)\s+\S*", re.DOTALL)
"""A text; the group holds its words between the first and the last, with spaces."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()
"""How a codec shows a part of a character."""

CHUNK = 2**21
"""Tokens that are read at a time: at most 16 MiB."""


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
    wanted = np.asarray(tokens)
    if not wanted.size:
        raise ValueError("the sequence to find is empty; give at least one token")
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise TypeError(
            f"the sequence to find must be a list of token ids, got {tokens!r}; encode "
            "a text by roxxel_format.texts.text_codec(corpus).encode"
        )
    hits = _places(corpus, wanted, progress, chunk)
    return (hit for each in hits for hit in each.tolist())


def find_text(
    corpus: TokenReader,
    codec: TextCodec,
    text: str,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the tokens `[start, stop)` of each occurrence of a text, in order.

    In a document, the tokens of a text's first and last word depend on what stands
    beside it: most tokenizers join a space to the word that follows, and a word that is
    cut has other tokens than the whole. So this searches for the tokens of the words
    between, and compares the text that the tokens around them stand for. A text
    without a word between is found where its tokens are those of the text as typed, or
    of the text after a space.

    Args:
        corpus: The corpus to search.
        codec: The codec of its text; see `roxxel_format.texts.text_codec`.
        text: The text, with at least one token.
        progress: Called with the number of tokens searched so far.

    Raises:
        ValueError: The text has no token.

    Example:
        >>> from roxxel_format import Roxxel
        >>> from roxxel_format.texts import text_codec
        >>> corpus = Roxxel("bytes.rox")
        >>> written = corpus.write([b"to be or not to be"])
        >>> list(find_text(corpus, text_codec(corpus), "to be"))
        [(0, 5), (13, 18)]
    """
    typed = codec.encode(text)
    if typed.size == len(text.encode(errors="replace")):  # Each token is a byte.
        yield from _exact(corpus, typed.tolist(), progress)
        return
    first, last = _inner(typed, text, codec)
    if first >= last:
        wanted = (typed, codec.encode(f" {text}"))
        each_once = dict.fromkeys(tuple(each.tolist()) for each in wanted)
        yield from merge(*(_exact(corpus, each, progress) for each in each_once))
        return
    shown = codec.decode(typed)
    ahead, behind = (len(codec.decode(typed[:count])) for count in (first, last))
    core = _Core(
        typed[first:last], shown[:ahead], shown[ahead:behind], shown[behind:], codec
    )
    content = text.encode(errors="replace")
    if content.strip() == shown.strip():  # The codec may add or drop a space.
        ahead += _num_spaces(content) - _num_spaces(shown)
    else:
        content = shown
    # In a document, a token of the text may be as short as a byte.
    before, after = ahead + _MARGIN, len(content) - ahead + last - first + _MARGIN
    for hits in _places(corpus, core.tokens, progress, CHUNK):
        for hit in core.possible(corpus, hits).tolist():
            low = max(0, hit - before)
            high = min(corpus.num_tokens, hit + after)
            held = corpus.read([low], high - low)[0]
            at = hit - low
            begin = len(codec.decode(held[:at])) - ahead
            if begin >= 0 and codec.decode(held)[begin:].startswith(content):
                start, stop = _range_of(held, begin, begin + len(content), codec)
                yield low + start, low + stop
            elif at >= first and np.array_equal(
                held[at - first :][: typed.size], typed
            ):
                yield hit - first, hit - first + typed.size


def _inner(typed: npt.NDArray[Any], text: str, codec: TextCodec) -> tuple[int, int]:
    """Return the tokens `[first, last)` of a text that nothing beside it changes.

    These are the tokens of the words between the first and the last, if there are any,
    less what some characters beside the text do change.
    """
    first = max(
        typed.size - _num_common(typed[::-1], codec.encode(each + text)[::-1])
        for each in _BEFORE
    )
    last = min(_num_common(typed, codec.encode(text + each)) for each in _AFTER)
    words = _INNER_WORDS.fullmatch(codec.decode(typed))
    if words is not None:
        begin, end = words.span(1)
        low = min(n for n, size in _near(typed, begin, codec) if size >= begin)
        high = max(n for n, size in _near(typed, end, codec) if size <= end)
        if max(first, low) < min(last, high):
            return max(first, low), min(last, high)
    # For example Chinese, which has no spaces: all that is known to be stable.
    return first, last


class _Core(NamedTuple):
    """Tokens that every occurrence of a text has, and the text before and after."""

    tokens: npt.NDArray[Any]
    head: bytes
    content: bytes
    tail: bytes
    codec: TextCodec

    def possible(
        self, corpus: TokenReader, hits: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the hits whose neighbours may stand for the text around the core.

        Common words have millions of hits, and to decode the text around each takes
        thousands of times as long as to look at two tokens.
        """
        stop = self.tokens.size
        for offset, fits in ((-1, self._fits_before), (stop, self._fits_after)):
            inside = (hits + offset >= 0) & (hits + offset < corpus.num_tokens)
            beside = corpus.read(hits[inside] + offset, 1)[:, 0] if inside.any() else ()
            kinds, of_hit = np.unique(np.asarray(beside), return_inverse=True)
            keep = ~inside
            keep[inside] = np.array([fits(each) for each in kinds], np.bool_)[of_hit]
            hits = hits[keep]
        return hits

    def _fits_before(self, token: Any) -> bool:
        both = self.codec.decode(np.append(np.asarray(token), self.tokens))
        head = self.head.lstrip()
        if not both.endswith(self.content) or not head:
            return True
        piece = both.removesuffix(self.content)
        return _UNKNOWN in piece or head.endswith(piece) or piece.endswith(head)

    def _fits_after(self, token: Any) -> bool:
        both = self.codec.decode(np.append(self.tokens, np.asarray(token)))
        piece = both[len(self.codec.decode(self.tokens)) :]
        tail = self.tail
        return _UNKNOWN in piece or tail.startswith(piece) or piece.startswith(tail)


def _exact(
    corpus: TokenReader,
    tokens: Sequence[int],
    progress: Callable[[int], object] | None,
) -> Iterator[tuple[int, int]]:
    for start in find_tokens(corpus, tokens, progress):
        yield start, start + len(tokens)


def _range_of(
    held: npt.NDArray[Any], begin: int, end: int, codec: TextCodec
) -> tuple[int, int]:
    """Return the fewest tokens whose text has the bytes `[begin, end)` of all."""
    start = max(n for n, size in _near(held, begin, codec) if size <= begin)
    stop = min(n for n, size in _near(held, end, codec) if size >= end)
    return start, stop


def _near(
    tokens: npt.NDArray[Any], size: int, codec: TextCodec
) -> list[tuple[int, int]]:
    """Return the counts of tokens whose text has about `size` bytes, and their bytes.

    The text may be a long document, so few of its beginnings are decoded. They do not
    always grow: a part of a character is shown by three bytes.
    """

    def size_of(count: int) -> int:
        return len(codec.decode(tokens[:count]))

    counts = range(tokens.size + 1)
    at = bisect_left(counts, size, key=size_of)
    near = counts[max(0, at - _PARTS) : at + _PARTS + 1]
    return [(count, size_of(count)) for count in near]


def _num_spaces(content: bytes) -> int:
    """Return how many spaces and line ends a text begins with."""
    return len(content) - len(content.lstrip())


def _num_common(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> int:
    """Return how many tokens two sequences share at their beginning."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


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
