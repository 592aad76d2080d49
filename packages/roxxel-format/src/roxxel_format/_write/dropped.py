"""Count the characters of a text that a tokenizer drops without a trace.

A BPE model without a token for unknown characters and without a fallback to bytes
leaves out what its vocabulary lacks: a text in another script becomes an empty
document. Other models raise an error, or have such a token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from roxxel_format._write.byte_tokenizer import BYTE_ALPHABET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Drops: TypeAlias = "Callable[[str], int]"
"""Returns how many characters of a text have no token."""

_REPLACEMENT = "\ufffd"


def drops_of(source: Any) -> Drops | None:
    """Return a function that counts dropped characters; None if none are dropped.

    It knows the objects of `tokenizers`, and those of `transformers` that hold one.
    """
    tokenizer = getattr(source, "backend_tokenizer", source)
    model = getattr(tokenizer, "model", None)
    if type(model).__name__ != "BPE" or not hasattr(tokenizer, "decode"):
        return None
    if getattr(model, "unk_token", None) or getattr(model, "byte_fallback", False):
        return None
    vocabulary = tokenizer.get_vocab()
    if all(each in vocabulary for each in BYTE_ALPHABET):
        return None
    return DroppedCharacters(tokenizer).count


class DroppedCharacters:
    """Counts dropped characters; asks the tokenizer about each character once."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = partial(tokenizer.encode, add_special_tokens=False)
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)
        self._known: dict[str, bool] = {}

    def count(self, text: str) -> int:
        """Return how many characters of a text the tokenizer drops."""
        found = set(text)
        dropped = self._dropped(found)
        return sum(map(text.count, dropped)) if dropped else 0

    def _dropped(self, characters: Iterable[str]) -> list[str]:
        known = self._known
        for each in characters:
            if each not in known:
                known[each] = self._is_dropped(each)
        return [each for each in characters if known[each]]

    def _is_dropped(self, character: str) -> bool:
        # A tokenizer may use spaces only to find words.
        if character.isspace():
            return False
        ids = self._encode(character).ids
        # Of the bytes of a character, some may have tokens and others none.
        return not ids or _REPLACEMENT in self._decode(ids).replace(character, "")
