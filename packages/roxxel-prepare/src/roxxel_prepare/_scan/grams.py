"""The n-grams of evaluation sets, and where they stand among a corpus's words.

An n-gram is a number computed from its words. Two different n-grams have the same
number once in about 2^64 pairs. Such a hit would mask a few tokens, so the words of
hits are not compared again. A text with fewer than n words is searched as a whole, if
it is long enough to be more than a phrase.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from roxxel_prepare._scan.words import run_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

_Hashes = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]

NGRAM = 13
"""Words of an n-gram (Brown et al., *Language Models are Few-Shot Learners*, 2020)."""

LEAST_WORDS = 5
"""A text with fewer words is not searched: "What is the capital of" is no leak."""

_FILTER_BITS = 6
"""Bits of the filter for each n-gram, as a power of two: 1 in 64 other n-grams
passes.
"""


@dataclass(frozen=True, eq=False)
class _Table:
    """Numbers to find, each with its text."""

    keys: _Hashes
    texts: _Places
    bits: int = field(init=False)
    filter: npt.NDArray[np.bool_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bits = min(27, max(12, int(self.keys.size).bit_length() + _FILTER_BITS))
        found = np.zeros(1 << bits, np.bool_)
        found[self.keys >> np.uint64(64 - bits)] = True
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "filter", found)

    @staticmethod
    def of(keys: Sequence[_Hashes], texts: Sequence[_Places]) -> _Table:
        every = np.concatenate([np.empty(0, np.uint64), *keys])
        of_text = np.concatenate([np.empty(0, np.int64), *texts])
        unique, first = np.unique(every, return_index=True)
        return _Table(unique, of_text[first])

    def find(self, hashes: _Hashes) -> tuple[_Places, _Places]:
        """Return the places of hashes that are in the table, and their texts."""
        may_be = np.flatnonzero(self.filter[hashes >> np.uint64(64 - self.bits)])
        wanted = hashes[may_be]
        at = np.searchsorted(self.keys, wanted).clip(0, max(self.keys.size - 1, 0))
        is_in = np.zeros(0, np.bool_) if not self.keys.size else self.keys[at] == wanted
        return may_be[is_in], self.texts[at[is_in]]


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams of texts, and the texts that have fewer words.

    Attributes:
        ngram: Number of words of an n-gram.
        num_short: Texts that are not searched, because they have too few words.
    """

    ngram: int
    num_short: int
    _whole: _Table
    _prefixes: _Table
    """The first words of texts that have fewer words: only where one of these stands,
    `find` looks for the whole text. Its texts are not used.
    """
    _short: dict[int, _Table]
    """The texts with fewer words, by their number of words."""

    @staticmethod
    def of(texts: Sequence[_Hashes], ngram: int) -> Grams:
        """Return the n-grams of texts, each given as the hashes of its words."""
        least = min(LEAST_WORDS, ngram)
        grams: list[_Hashes] = []
        owners: list[_Places] = []
        prefixes: list[_Hashes] = []
        short: dict[int, tuple[list[_Hashes], list[_Places]]] = {}
        num_short = 0
        for number, words in enumerate(texts):
            size = min(ngram, words.size)
            if size < least:
                num_short += 1
                continue
            found = _grams(words, size)
            of_text = np.full(found.size, number, np.int64)
            if size == ngram:
                grams.append(found)
                owners.append(of_text)
                continue
            prefixes.append(_grams(words, least)[:1])
            short_grams, short_owners = short.setdefault(size, ([], []))
            short_grams.append(found)
            short_owners.append(of_text)
        return Grams(
            ngram,
            num_short,
            _Table.of(grams, owners),
            _Table.of(prefixes, [np.zeros(len(prefixes), np.int64)]),
            {size: _Table.of(*each) for size, each in sorted(short.items())},
        )

    def find(
        self, words: _Hashes, documents: _Places
    ) -> tuple[_Places, _Places, _Places]:
        """Return where n-grams stand among words, in no order.

        Args:
            words: The hashes of the words.
            documents: The document of each word, rising.

        Returns:
            For each hit, its first word, one past its last word, and its text.
        """
        hits = [_in_documents(*self._found(self._whole, words, self.ngram), documents)]
        if self._short:
            least = min(LEAST_WORDS, self.ngram)
            starts, _, _ = self._found(self._prefixes, words, least)
            for size, table in self._short.items():
                within = starts[starts + size <= words.size]
                hashes = run_hashes_at(words, within, size)
                at, texts = table.find(hashes)
                first = within[at]
                hits.append(_in_documents(first, first + size, texts, documents))
        starts, stops, texts = map(np.concatenate, zip(*hits, strict=True))
        return starts, stops, texts

    @staticmethod
    def _found(
        table: _Table, words: _Hashes, size: int
    ) -> tuple[_Places, _Places, _Places]:
        starts, texts = table.find(_grams(words, size))
        return starts, starts + size, texts


def run_hashes_at(words: _Hashes, starts: _Places, size: int) -> _Hashes:
    """Return the numbers of the n-grams that begin at some words."""
    if not starts.size:
        return np.empty(0, np.uint64)
    first = np.arange(starts.size, dtype=np.int64) * size
    rows = words[(starts[:, None] + np.arange(size)).ravel()]
    return run_hashes(rows, first, first + size)


def _grams(words: _Hashes, size: int) -> _Hashes:
    """Return the number of the n-gram that begins at each word."""
    starts = np.arange(max(words.size - size + 1, 0), dtype=np.int64)
    return run_hashes(words, starts, starts + size)


def _in_documents(
    starts: _Places, stops: _Places, texts: _Places, documents: _Places
) -> tuple[_Places, _Places, _Places]:
    # A hit that begins in one document and ends in another is no hit.
    is_in = documents[starts] == documents[stops - 1]
    return starts[is_in], stops[is_in], texts[is_in]
