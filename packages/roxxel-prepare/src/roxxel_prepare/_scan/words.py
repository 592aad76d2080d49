"""The words of a text, normalised, as 64-bit numbers with their places.

Two spellings of a text have the same words if they differ only in white space,
punctuation, capitals, accents, invisible characters, or in the Unicode form of a
character, such as the ligature `ﬁ` for `fi`. Normalising works character by character,
so that each word still knows its place in the text: a character is decomposed (NFKD),
case-folded, and loses its marks (Unicode, *Standard Annex 15*). A word is a run of
letters and digits. In scripts without spaces between words, such as Chinese or Thai,
each character is a word.

All of this is arithmetic on arrays: `python
tests-integration/benchmarks/prepare_scan.py` prints its speed and that of plain
reading.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Hashes = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_NUM_POINTS = 0x110000
_LONE = dict.fromkeys(range(0xDC80, 0xDD00), " ")

_BLOCK = 1 << 16
"""Bytes of text at a time: few enough that the results stay in the processor's
cache.
"""

_NONE, _IN_WORD, _WORD = 0, 1, 2
"""Kinds of characters: between words, part of a word, a whole word."""

_INVISIBLE = {"Mn", "Me", "Cf"}
"""Categories of characters that vanish: marks, and characters for layout."""

_SINGLES = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x31FF),  # radicals, Hiragana, Katakana, Bopomofo
    (0x3400, 0x9FFF),  # Han
    (0x20000, 0x3FFFF),
)


class Words(NamedTuple):
    """The words of a text, in order.

    Attributes:
        hashes: A number for each word, the same in every process and release.
        starts: Byte of the UTF-8 text at which each word begins.
        stops: One past each word's last byte.
    """

    hashes: _Hashes
    starts: _Places
    stops: _Places


def words_of(text: bytes) -> Words:
    """Return the words of a text in UTF-8; bytes that are not UTF-8 separate words.

    >>> one, other = words_of("L'École: fine".encode()), words_of(b"l ecole, FINE")
    >>> one.hashes.tolist() == other.hashes.tolist(), one.starts.tolist()
    (True, [0, 2, 10])
    """
    parts: list[Words] = []
    start = 0
    while start < len(text):
        stop = _end_of_block(text, start)
        block = text[start:stop]
        found = _in_ascii(block) if block.isascii() else _in_unicode(block)
        parts.append(Words(found.hashes, found.starts + start, found.stops + start))
        start = stop
    if not parts:
        return Words(np.empty(0, np.uint64), *[np.empty(0, np.int64)] * 2)
    return Words(*map(np.concatenate, zip(*parts, strict=True)))


def _end_of_block(text: bytes, start: int) -> int:
    """Return where the next block ends: never inside a word or a character."""
    stop = start + _BLOCK
    if stop >= len(text):
        return len(text)
    for space in (b" ", b"\n"):
        last = text.rfind(space, start, stop)
        if last > start:
            return last
    first = [at for x in (b" ", b"\n") if (at := text.find(x, stop)) >= 0]
    return min(first, default=len(text))


def _in_ascii(text: bytes) -> Words:
    folded = np.frombuffer(text.translate(_ascii()), np.uint8)
    starts, stops = _runs((folded != 0).view(np.uint8))
    return Words(run_hashes(folded.astype(np.uint64), starts, stops), starts, stops)


def _in_unicode(text: bytes) -> Words:
    characters = text.decode(errors="replace")
    points = np.frombuffer(characters.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    ends = np.cumsum(sizes)
    if ends[-1] != len(text):  # Some byte was no UTF-8.
        return _in_unicode(_with_spaces(text))
    table = _table()
    table.learn(points)
    lengths = table.lengths[points]
    origin = None
    folded = table.firsts[points]
    if (lengths != 1).any():
        origin = np.repeat(np.arange(points.size), lengths)
        before = np.cumsum(lengths) - lengths
        within = np.arange(origin.size) - before[origin]
        long = np.flatnonzero(within)
        folded = folded[origin]
        folded[long] = table.others[table.places[points[origin[long]]] + within[long]]
    starts, stops = _runs(table.kinds[folded])
    hashes = run_hashes(folded.astype(np.uint64), starts, stops)
    last = stops - 1
    if origin is not None:
        starts, last = origin[starts], origin[last]
    return Words(hashes, ends[starts] - sizes[starts], ends[last])


def _with_spaces(text: bytes) -> bytes:
    """Return a text of the same size, with spaces for bytes that are not UTF-8."""
    return text.decode("utf-8", "surrogateescape").translate(_LONE).encode()


def run_hashes(values: _Hashes, starts: _Places, stops: _Places) -> _Hashes:
    """Return a number for each run `[start, stop)` of values.

    It is a polynomial of the values, modulo 2^64, whose bits are then mixed.
    """
    powers, inverses = _powers(int(values.size).bit_length())
    sums = np.zeros(values.size + 1, np.uint64)
    np.multiply(values, powers[: values.size], out=sums[1:])
    np.cumsum(sums[1:], out=sums[1:])
    return _mixed((sums[stops] - sums[starts]) * inverses[starts])


def number_hashes(ids: npt.NDArray[np.int64]) -> _Hashes:
    """Return a number for each token id."""
    return _mixed(ids.astype(np.uint64) + np.uint64(_NUM_POINTS))


def _runs(kinds: npt.NDArray[np.uint8]) -> tuple[_Places, _Places]:
    """Return where words begin, and where they end."""
    if not kinds.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_edge = (kinds[1:] != kinds[:-1]) | (kinds[1:] == _WORD)
    begins = np.flatnonzero(np.append(True, is_edge) & (kinds != _NONE))
    ends = np.flatnonzero(np.append(is_edge, True) & (kinds != _NONE)) + 1
    return begins, ends


def _mixed(values: _Hashes) -> _Hashes:
    """Mix the bits of numbers (Steele et al., *Fast Splittable Generators*, 2014)."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@cache
def _powers(bits: int) -> tuple[_Hashes, _Hashes]:
    """Return the powers of the base below 2^bits, and their inverses."""
    return _powers_of(_BASE, 1 << bits), _powers_of(pow(_BASE, -1, 2**64), 1 << bits)


def _powers_of(base: int, count: int) -> _Hashes:
    found = np.ones(count, np.uint64)
    size, power = 1, base & _MASK
    while size < count:
        found[size : 2 * size] = found[:size] * np.uint64(power)
        size, power = 2 * size, power * power & _MASK
    return found


@cache
def _ascii() -> bytes:
    """Return what each ASCII character becomes; 0 between words."""
    table = _table()
    folded = table.firsts[:128]
    found = np.where(table.kinds[folded] == _NONE, 0, folded)
    return found.astype(np.uint8).tobytes() + bytes(128)


class _Table:
    """The normal forms of characters.

    Attributes:
        lengths: Number of characters in the normal form, by character.
        firsts: The first character of the normal form.
        places: Where `others` has the normal form, if it has several characters.
        others: The normal forms of several characters, one after another.
        kinds: Kind of each character of a normal form.
    """

    def __init__(self) -> None:
        self.lengths = np.zeros(_NUM_POINTS, np.int64)
        self.firsts = np.zeros(_NUM_POINTS, np.uint32)
        self.places = np.zeros(_NUM_POINTS, np.int64)
        self.kinds = np.zeros(_NUM_POINTS, np.uint8)
        self.others = np.empty(0, np.uint32)
        self._is_known = np.zeros(_NUM_POINTS, np.bool_)
        self.learn(np.arange(0x800, dtype=np.uint32))

    def learn(self, points: npt.NDArray[np.uint32]) -> None:
        """Add the characters that are not in the table."""
        for point in np.unique(points[~self._is_known[points]]).tolist():
            form = [ord(each) for each in _normal(chr(point))]
            for each in form:
                self.kinds[each] = _kind(chr(each))
            if form and not self.kinds[form].any():
                form = [ord(" ")]
            self.lengths[point] = len(form)
            self.firsts[point] = form[0] if form else 0
            if len(form) > 1:
                self.places[point] = self.others.size
                self.others = np.append(self.others, np.array(form, np.uint32))
            self._is_known[point] = True


_table = cache(_Table)


def _normal(character: str) -> str:
    folded = unicodedata.normalize("NFKD", character).casefold()
    form = unicodedata.normalize("NFKD", folded)
    return "".join(x for x in form if unicodedata.category(x) not in _INVISIBLE)


def _kind(character: str) -> int:
    if unicodedata.category(character)[0] not in "LNM":
        return _NONE
    point = ord(character)
    return _WORD if any(a <= point <= b for a, b in _SINGLES) else _IN_WORD
