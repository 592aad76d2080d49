"""Hypothesis strategies for documents and corpora (extra: testing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store import missing_extra

from roxxel_format.corpus import Roxxel

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_format.testing", "hypothesis", "roxxel-format", "testing"
    ) from error

if TYPE_CHECKING:
    import os

    import numpy.typing as npt


def documents(
    *,
    vocab_size: int = 1000,
    dtype: npt.DTypeLike = np.uint16,
    max_documents: int = 8,
    max_length: int = 2000,
) -> st.SearchStrategy[list[npt.NDArray[Any]]]:
    """Return a strategy for lists of one or more documents.

    Hypothesis chooses the lengths, because they decide where shards, blocks and windows
    end. A seed determines the tokens, so a long document needs few choices.

    Args:
        vocab_size: Tokens are below `vocab_size`.
        dtype: Integer type of the arrays.
        max_documents: Maximum number of documents in a list.
        max_length: Maximum number of tokens in a document.
    """

    def filled(lengths: list[int], seed: int) -> list[npt.NDArray[Any]]:
        rng = np.random.default_rng(seed)
        return [rng.integers(0, vocab_size, length).astype(dtype) for length in lengths]

    lengths = st.lists(st.integers(0, max_length), min_size=1, max_size=max_documents)
    return st.builds(filled, lengths, st.integers(0, 2**32 - 1))


def write_shards(
    folder: str | os.PathLike[str], data: list[Any], **options: Any
) -> Roxxel:
    """Replace the corpus in a folder by shards of a few thousand tokens.

    Args:
        folder: The folder of a test.
        data: The documents.
        options: As for `Roxxel.write`.

    Returns:
        The corpus.
    """
    corpus = Roxxel(folder)
    small: dict[str, Any] = {"block_size": 512, "max_shard_bytes": 12_000}
    corpus.write(data, **(small | options), exist="replace")
    return corpus
