"""The bytes of each token, if a text is just its tokens' bytes in a row.

Such a text can be made from a part of a document, or for many documents at once,
without calling the tokenizer. A decoder of `tokenizers` is a sequence of steps, and
each step changes the names of tokens. Most steps see a single name, and whether its
token is the first or the last of the document. This module supports only those, and
asks the decoder itself what it makes of each name. Two other steps are supported too.
`Fuse` joins the names, which does not change the text. `ByteFallback` turns
neighbouring tokens of single bytes, such as `<0xE2>`, into the text that they spell
together, or into one U+FFFD for each byte if they spell none.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.records import find_object

from roxxel_format._write.tokenizers import BYTE_ALPHABET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()

_BY_PLACE = re.compile(
    r"((Replace|Metaspace|WordPiece|BPEDecoder) )*(Fuse )?"
    r"|(Replace )*(ByteFallback )?Fuse Strip |(Replace )*ByteFallback (Fuse )?"
)
"""Decoder steps that give each token its own bytes, by its place in the document."""

_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_OF_BYTE_NAMES = re.compile(r"[<x>0-9A-Fa-f]")

_BESIDE = "\U0010ffff"
"""Name of a neighbour for the token whose bytes are requested; no tokenizer has this
name.
"""

_CACHED = 2**16
"""Number of tokens at ends of documents whose bytes are kept."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The bytes of each token; the bytes of a document's tokens in a row are its text.

    Attributes:
        inside: The bytes of a token between two others, by its id. The last entry,
            without bytes, is for any greater id, which the tokenizer lacks.
        at_end: Returns the bytes of a token that is the first or the last of a
            document, or both. None if a token has the same bytes everywhere.
        is_named: Whether the tokenizer has an id, by id. A text ignores the others.
        is_byte: Whether a token is a single byte, whose text depends on its neighbours,
            by id.

    Example:
        >>> plain = same_everywhere([b"to", b" be"])
        >>> plain.of(np.array([0, 1, 7]), np.array([0]), np.array([3]))
        [b'to', b' be', b'']
    """

    inside: npt.NDArray[Any]
    at_end: Callable[[int, bool, bool], bytes] | None
    is_named: npt.NDArray[Any]
    is_byte: npt.NDArray[Any]

    def of(
        self,
        ids: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Return the bytes of each token.

        Args:
            ids: The tokens. Between documents there may be ids that the tokenizer
                lacks.
            starts: Where documents begin, in order.
            stops: Where documents end: one past their last token, in order.
        """
        pieces = self.inside.take(ids, mode="clip").tolist()
        if self.at_end is None:
            return pieces
        is_named = self.is_named.take(ids, mode="clip")
        (named,) = np.nonzero(is_named)
        before, after = named.searchsorted(stops) - 1, named.searchsorted(starts)
        firsts = set(named[after[after < named.size]].tolist())
        lasts = set(named[before[before >= 0]].tolist())
        for place in firsts | lasts:
            pieces[place] = self.at_end(
                int(ids[place]), place in firsts, place in lasts
            )
        is_byte = self.is_byte.take(ids, mode="clip")
        if is_byte.any():
            is_in_run = is_byte | ~is_named
            (edges,) = np.nonzero(is_in_run[1:] != is_in_run[:-1])
            borders = np.unique(np.concatenate([[0, ids.size], edges + 1, starts]))
            for start, stop in pairwise(borders.tolist()):
                if is_in_run[start] and not _is_text(b"".join(pieces[start:stop])):
                    for place in np.flatnonzero(is_byte[start:stop]).tolist():
                        pieces[start + place] = _UNKNOWN
        return pieces

    def may_cut(
        self, ids: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return whether the text may be cut before each token.

        Then `of` returns the same for the two sides as for the whole. The arguments are
        those of `of`.
        """
        is_named = self.is_named.take(ids, mode="clip")
        is_byte = self.is_byte.take(ids, mode="clip")
        may_cut = np.ones(ids.size, np.bool_)
        may_cut[1:] = is_named[1:] & is_named[:-1] & ~(is_byte[1:] & is_byte[:-1])
        may_cut[starts[starts < ids.size]] = True
        return may_cut


def same_everywhere(pieces: Sequence[bytes]) -> Pieces:
    """Return the pieces of tokens that have the same bytes everywhere, by their ids."""
    inside = np.array([*pieces, b""], object)
    every = np.arange(inside.size) < len(pieces)
    return Pieces(inside, None, every, ~every)


def no_pieces() -> None:
    """Return None: the text is known only when all tokens are decoded together."""


def of_bytes(source: Any, size: int) -> Pieces:
    """Return the pieces of an object like a `tiktoken.Encoding`."""

    def piece(token: int) -> bytes:
        try:
            return source.decode_bytes([token])
        except KeyError:  # Ids below special tokens may have no token.
            return b""

    return same_everywhere([piece(token) for token in range(size)])


def of_decoder(source: Any, size: int) -> Pieces | None:
    """Return the pieces of an object of `tokenizers`; None if a step is unsupported."""
    steps = _steps(source.decoder)
    kinds = "".join(f"{step['type']} " for step in steps or [])
    if kinds == "ByteLevel ":
        return _byte_level(source, size)
    if steps is None or not (_BY_PLACE.fullmatch(kinds) and _are_apart(steps)):
        return None
    decode = " ".join if source.decoder is None else source.decoder.decode
    names: list[str | None] = [source.id_to_token(token) for token in range(size)]
    known = [name for name in names if name is not None]
    two = decode([_BESIDE, _BESIDE])
    between = two.removeprefix(_BESIDE).removesuffix(_BESIDE)
    if two != _BESIDE + between + _BESIDE or any(_BESIDE in name for name in known):
        return None
    rows = decode([_BESIDE, *(each for name in known for each in (name, _BESIDE))])
    texts = [text.removesuffix(between) for text in rows.split(_BESIDE)[1:-1]]
    if len(texts) != len(known) or (kinds.endswith("Strip ") and not all(texts)):
        return None
    text_of = dict(zip(known, texts, strict=True))
    bytes_of: dict[str, bytes] = {}
    if "ByteFallback " in kinds:
        found = ((name, _BYTE_NAME.fullmatch(name)) for name in known)
        bytes_of = {name: bytes.fromhex(each[1]) for name, each in found if each}

    def inside(name: str | None) -> bytes:
        return b"" if name is None else bytes_of.get(name) or text_of[name].encode()

    @lru_cache(_CACHED)
    def at_end(token: int, is_first: bool, is_last: bool) -> bytes:
        name = names[token] or ""
        before = [] if is_first else [_BESIDE]
        after = [] if is_last else [_BESIDE]
        text = decode([*before, name, *after])
        text = text.removeprefix(_BESIDE).removesuffix(_BESIDE)
        if not is_last:
            # What stands between two tokens belongs to the second.
            text = text.removesuffix(between)
        if name in bytes_of:
            # Alone, a byte may decode to U+FFFD, so `text` says only whether `Strip`
            # removed it: a space or the like, which one byte spells.
            return bytes_of[name] if text else b""
        return text.encode()

    return Pieces(
        np.array([*map(inside, names), b""], object),
        at_end,
        np.array([*(name is not None for name in names), False]),
        np.array([*(name in bytes_of for name in names), False]),
    )


def _steps(decoder: Any) -> list[dict[str, Any]] | None:
    """Return the steps of a decoder of `tokenizers`; None if they are unknown."""
    if decoder is None:  # Names are joined by spaces.
        return []
    state = b""
    # The library raises a bare Exception for a decoder that is written in Python.
    with contextlib.suppress(Exception):
        state = decoder.__getstate__()
    step = find_object(state)
    return None if step is None else list(_flat(step))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for each in cast("list[dict[str, Any]]", step["decoders"]):
        yield from _flat(each)


def _are_apart(steps: Sequence[dict[str, Any]]) -> bool:
    """Whether the last step strips one token, and no other step changes bytes."""
    kinds = [step["type"] for step in steps]
    if kinds[-2:] == ["Fuse", "Strip"]:
        last = steps[-1]
        if last["start"] > 1 or last["stop"] or not last["content"].isascii():
            return False
    if "ByteFallback" not in kinds:
        return True
    return all(
        step["content"]
        and not _OF_BYTE_NAMES.search(step["content"])
        and not _OF_BYTE_NAMES.search(step["pattern"].get("String") or "x")
        for step in steps
        if step["type"] == "Replace"
    )


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _byte_level(source: Any, size: int) -> Pieces:
    """Return the pieces of a byte-level tokenizer of `tokenizers`.

    A token of such a tokenizer spells bytes in `BYTE_ALPHABET`. A token with any other
    character, such as a special token with a space in its name, spells itself.
    """
    byte_of = {letter: byte for byte, letter in enumerate(BYTE_ALPHABET)}

    def piece(token: int) -> bytes:
        spelled: str = source.id_to_token(token) or ""
        if all(letter in byte_of for letter in spelled):
            return bytes(byte_of[letter] for letter in spelled)
        return spelled.encode()

    return same_everywhere([piece(token) for token in range(size)])
