"""Finds a text, or an exact sequence of tokens, in a corpus, in bounded memory."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Any

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
    return _places(corpus, wanted, progress, chunk)


def find_text(
    corpus: TokenReader,
    codec: TextCodec,
    text: str,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the tokens `[start, stop)` of each occurrence of a text, in order.

    In a document, the first and last tokens of a text depend on what stands beside it:
    most tokenizers join a space to the word that follows. So this searches for the
    tokens between, and compares the text that the tokens around them stand for. A text
    of one word has no tokens between. It is found where it stands as typed, or after a
    space.

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
    first = max(
        typed.size - _num_common(typed[::-1], codec.encode(each + text)[::-1])
        for each in _BEFORE
    )
    last = min(_num_common(typed, codec.encode(text + each)) for each in _AFTER)
    if first >= last or last - first == typed.size:
        # One word, or tokens that nothing beside them changes, such as bytes.
        spaced = typed if first < last else codec.encode(f" {text}")
        wanted = dict.fromkeys(tuple(each.tolist()) for each in (typed, spaced))
        yield from merge(*(_exact(corpus, each, progress) for each in wanted))
        return
    content = codec.decode(typed)
    if content.strip() == text.encode(errors="replace").strip():
        content = text.encode(errors="replace")  # The codec adds or drops a space.
    ahead = len(codec.decode(typed[:first]))
    before, after = first + _MARGIN, typed.size - last + _MARGIN
    for hit in find_tokens(corpus, typed[first:last], progress):
        low = max(0, hit - before)
        high = min(corpus.num_tokens, hit + last - first + after)
        held = corpus.read([low], high - low)[0]
        at = hit - low
        begin = len(codec.decode(held[:at])) - ahead
        if begin >= 0 and codec.decode(held)[begin:].startswith(content):
            start, stop = _range_of(held, begin, begin + len(content), codec)
            yield low + start, low + stop
        elif at >= first and np.array_equal(held[at - first :][: typed.size], typed):
            yield hit - first, hit - first + typed.size


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
    ends = [len(codec.decode(held[:count])) for count in range(held.size + 1)]
    start = max(count for count, size in enumerate(ends) if size <= begin)
    stop = min(count for count, size in enumerate(ends) if size >= end)
    return start, stop


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
) -> Iterator[int]:
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
        yield from (start + int(place) for place in found)
        if progress is not None:
            progress(start + count)
