"""Encodes batches of texts with `fastokens`, with the ids of `tokenizers` or an error.

With `fastokens`, a preparation is 15 to 30 times as fast as with `tokenizers`
(`tests-integration/benchmarks/prepare.py` prints both). But it is another program: it
may know another version of Unicode, or have a fault. So `tokenizers` decides what is
right, in three ways:

- `fastokens` refuses the kinds of models that it cannot encode (Unigram, WordPiece);
- the first time a character occurs, both encode it, between letters, digits, spaces and
  line ends. A text with a character that differs goes to `tokenizers`;
- both encode the first document, and then whole documents with one of every 4,000
  characters. A difference there is an error, because there may be any number of others.
  This costs about 3 %, however long documents are. (`fastokens` encodes a hundred
  characters in the time that `tokenizers` needs for one, and one document in a thousand
  would cost 10 %.)
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKED_EVERY = 4000
_UNKNOWN, _SAME, _DIFFERS = range(3)
_ASCII = range(128)
_SURROGATES = slice(0xD800, 0xE000)
_NUM_CODE_POINTS = 0x110000
# What stands around a character decides where a word ends. All of it is in one text,
# because runs of spaces and line ends show more: alone, none of the four shows that
# U+180E is a space to `tokenizers`. Besides, it takes 0.6 of the time of four texts.
_AROUND = "a{0}b\n1{0}2\n {0} \n{0}\n"
_MOST_CHARACTERS = 1 << 31
"""Number of characters after which a new encoder is made, to bound its caches. So a
worker had at most 370 MiB over 5 GB of text; without this, 395 MiB over 3 GB
(`--memory` of the same benchmark).
"""


class FastTokenizer:
    """A tokenizer of the library `tokenizers` that encodes batches with `fastokens`.

    Everything else goes to the reference: single texts, decoding, the vocabulary.

    Args:
        reference: A `tokenizers.Tokenizer`, which decides what is right.

    Attributes:
        num_by_reference: Texts of batches that the reference encoded, because one of
            their characters differs.

    Raises:
        ModuleNotFoundError: `fastokens` is not installed.
        ValueError: `fastokens` cannot encode this kind of tokenizer.
    """

    def __init__(self, reference: Any) -> None:
        self._library: Any = importlib.import_module("fastokens")
        self._reference = reference
        self._encoder = self._made()
        # Characters, and one more for each text.
        self._num_encoded = self._num_checked = 0
        self._num_characters = self.num_by_reference = 0
        self._wrong: str | None = None
        self._known = np.full(_NUM_CODE_POINTS, _UNKNOWN, np.uint8)
        # No encoder takes halves of pairs; `tokenizers` names them in its error.
        self._known[_SURROGATES] = _SAME
        self._compare(np.array(_ASCII))
        if (self._known[_ASCII] == _DIFFERS).any():
            raise ValueError("it gives other ids for ASCII characters")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference, name)

    @property
    def encoder(self) -> str:
        """The encoding library, with its version and the reference's."""
        fast, reference = (
            f"{name} {version(name)}" for name in ("fastokens", "tokenizers")
        )
        return f"{fast}, checked against {reference}"

    @property
    def encode_special_tokens(self) -> bool:
        """Whether the text of a special token is encoded like any other text."""
        return self._reference.encode_special_tokens

    @encode_special_tokens.setter
    def encode_special_tokens(self, value: bool) -> None:
        self._reference.encode_special_tokens = value

    def encode(self, text: str, *arguments: Any, **named: Any) -> Any:
        """Encode one text with the reference.

        Raises:
            ValueError: `fastokens` gave other ids for this text.
        """
        if text == self._wrong:
            raise ValueError(
                f"{self.encoder}, gives other ids; pass "
                'tokenizer_backend="tokenizers" (--tokenizer-backend tokenizers)'
            )
        return self._reference.encode(text, *arguments, **named)

    def encode_batch_fast(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Any]:
        """Encode several texts.

        Args:
            texts: The texts.
            add_special_tokens: Whether to add the tokens that the tokenizer puts around
                each text.

        Returns:
            An array of ids, or an object with `ids`, for each text.

        Raises:
            ValueError: `fastokens` gave other ids than the reference for one of them;
                `encode` then raises for this text.
        """
        self._bound_memory(texts)
        others = self._differing(texts)
        found: list[Any] = self._flat(texts, add_special_tokens=add_special_tokens)
        options = {"add_special_tokens": add_special_tokens}
        for number in others:
            found[number] = self._reference.encode(texts[number], **options)
        for text, encoded in zip(texts, found, strict=True):
            if self._num_checked * _CHECKED_EVERY <= self._num_encoded:
                right = self._reference.encode(text, **options).ids
                if not np.array_equal(getattr(encoded, "ids", encoded), right):
                    self._wrong = text
                    raise ValueError(f"{self.encoder}, gives other ids")
                self._num_checked += len(text) + 1
            self._num_encoded += len(text) + 1
        self.num_by_reference += len(others)
        return found

    def _made(self) -> Any:
        """Return the encoder; raise ValueError if it refuses the tokenizer."""
        try:
            encoder = self._library.Tokenizer.from_json_str(self._reference.to_str())
        except Exception as error:  # the library raises many types
            raise ValueError(reason_of(error)) from error
        encoder.no_truncation()
        encoder.no_padding()
        return encoder

    def _bound_memory(self, texts: Sequence[str]) -> None:
        self._num_characters += sum(map(len, texts))
        if self._num_characters > _MOST_CHARACTERS:
            self._encoder, self._num_characters = self._made(), 0

    def _flat(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]:
        ids, ends = self._encoder.encode_batch_flat(
            texts, add_special_tokens, self.encode_special_tokens
        )
        items = np.frombuffer(ids, "<u4")
        bounds = np.frombuffer(ends, "<u8").tolist()
        return [items[start:stop] for start, stop in pairwise(bounds)]

    def _differing(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of the texts with a character whose ids differ."""
        wide = [n for n, text in enumerate(texts) if not text.isascii()]
        points = [_code_points(texts[number]) for number in wide]
        states = [self._known[each] for each in points]
        new = [
            each[state == _UNKNOWN]
            for each, state in zip(points, states, strict=True)
            if (state == _UNKNOWN).any()
        ]
        if new:
            self._compare(np.unique(np.concatenate(new)))
            states = [self._known[each] for each in points]
        return [
            number
            for number, state in zip(wide, states, strict=True)
            if state.max() == _DIFFERS
        ]

    def _compare(self, new: np.ndarray[Any, Any]) -> None:
        """Let both encode characters that occur for the first time."""
        texts = [_AROUND.format(chr(point)) for point in new]
        right = self._reference.encode_batch_fast(texts, add_special_tokens=False)
        found = self._flat(texts, add_special_tokens=False)
        pairs = zip(found, right, strict=True)
        same = np.array([one.tolist() == other.ids for one, other in pairs])
        self._known[new] = np.where(same, _SAME, _DIFFERS)


def _code_points(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
