"""Finds an exact sequence of tokens in a corpus, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from roxxel_format import TokenReader

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
