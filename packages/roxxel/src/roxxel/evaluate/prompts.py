"""Make a model's input from a text, as the corpus made its documents.

Every command that gives a text to a model makes its prompts here: `roxxel sample`,
`roxxel eval`, and `roxxel replay` for the texts of its branches. A model that was
trained on documents with `<s>` at the beginning predicts badly after a text without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from roxxel_format.texts import TextCodec


class Prompt(NamedTuple):
    """The input of a model.

    Attributes:
        start: The tokens before the text.
        text: The tokens of the text.

    Example:
        >>> Prompt([0], [5, 6, 7]).shortened(3).tokens
        [0, 6, 7]
    """

    start: list[int]
    text: list[int]

    @property
    def tokens(self) -> list[int]:
        """All tokens, in order."""
        return self.start + self.text

    def shortened(self, room: int) -> Prompt:
        """Return this prompt with at most `room` tokens, without its oldest text."""
        left = max(0, room - len(self.start))
        text = self.text[max(0, len(self.text) - left) :]
        return Prompt(self.start[max(0, len(self.start) - room) :], text)


class Prompts:
    """Makes prompts, and the texts of their continuations.

    Args:
        codec: Converts text to tokens and back; see `roxxel_format.texts.text_codec`.
        ends: The tokens that end a document. An empty text begins after such a token,
            if the corpus puts no token before its documents.

    Example:
        >>> from roxxel_format import Roxxel
        >>> from roxxel_format.texts import text_codec
        >>> corpus = Roxxel("bytes.rox")
        >>> written = corpus.write([b"to be"], separator=0)
        >>> prompts = Prompts(text_codec(corpus), [0])
        >>> prompts.of("to").tokens, prompts.of("").tokens
        ([116, 111], [0])
    """

    def __init__(self, codec: TextCodec, ends: Collection[int] = ()) -> None:
        self._codec = codec
        self._ends = ends

    @property
    def first(self) -> list[int]:
        """The tokens after which a model predicts the first token of a document.

        Raises:
            ValueError: No token stands before documents, and not exactly one token ends
                them.
        """
        if self._codec.before:
            return self._codec.before
        if len(self._ends) != 1:
            ends = " or ".join(map(str, self._ends)) or "none"
            raise ValueError(
                "an empty text begins after the token that ends documents, which must "
                f"be one, but is {ends}; write the corpora with one separator"
            )
        return [*self._ends]

    def of(self, text: str) -> Prompt:
        """Return the prompt of a text; it begins like a document with this text.

        Raises:
            ValueError: The text is empty; see `first`.
        """
        tokens = self._codec.encode(text).tolist()
        return Prompt(self._codec.before if tokens else self.first, tokens)

    def typed(self, text: str) -> Prompt:
        """Return the prompt of a text that may itself spell the first tokens.

        They are not added a second time.
        """
        prompt, before = self.of(text), self._codec.before
        has_them = before and prompt.text[: len(before)] == before
        return Prompt([], prompt.text) if has_them else prompt

    def text(self, prompt: Prompt, added: Sequence[int]) -> bytes:
        """Return the text of a prompt and of the tokens that continue it.

        Both are decoded together, because some tokenizers drop a space at the
        beginning.
        """
        return self._codec.decode(np.array([*prompt.text, *added], np.int64))
