"""Check whether the ids of several corpora mean the same text.

A blend of corpora of different tokenizers trains without an error, on nonsense. What is
certain is an error: two recorded tokenizers that differ, or bytes blended with larger
ids. What is only likely is a note, such as a corpus that records no tokenizer. A
curriculum can declare a tokenizer, which decides both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from roxxel_curriculum._plan.solution import Source

_BYTES = "bytes"
_LARGEST_OF_BYTES = 256
"""The separator of the tokenizer `"bytes"`; the ids of bytes are smaller."""


class Vocabulary(NamedTuple):
    """The ids of a source, and what messages call it, such as `source 'web'`."""

    label: str
    source: Source

    @property
    def tokenizer(self) -> str | None:
        """The declared, else the recorded tokenizer; None if neither is known."""
        return self.source.declared or self.source.tokenizer

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored tokens."""
        return self.source.dtype

    @property
    def greatest(self) -> int | None:
        """Largest token; None if the reader does not record it."""
        return None if self.source.token_range is None else self.source.token_range[1]

    @property
    def holds_bytes(self) -> bool:
        """Whether the ids are bytes, by their tokenizer or by their type."""
        if self.tokenizer is not None:
            return self.tokenizer.partition("@")[0] == _BYTES
        return self.dtype == np.uint8

    @property
    def holds_no_bytes(self) -> bool:
        """Whether the ids are certainly not bytes."""
        if self.tokenizer is not None:
            return not self.holds_bytes
        return self.greatest is not None and self.greatest > _LARGEST_OF_BYTES

    def __str__(self) -> str:
        """Return the label, with what is known about the ids."""
        if self.tokenizer is not None:
            return f"{self.label} (tokenizer {self.tokenizer!r})"
        size = "" if self.greatest is None else f" up to {self.greatest}"
        return f"{self.label} ({self.dtype.name} tokens{size}, no tokenizer recorded)"


def labelled(sources: Iterable[Source], label: str) -> list[Vocabulary]:
    """Return the ids of sources whose labels begin with `label`."""
    return [Vocabulary(f"{label} {each.name!r}", each) for each in sources]


def compare(vocabularies: Sequence[Vocabulary]) -> tuple[str, ...]:
    """Compare corpora with the one of which most is known; return a note per doubt.

    Raises:
        CurriculumError: The ids of two corpora certainly mean different text.
    """
    known = [each for each in vocabularies if each.tokenizer is not None]
    reference = (known or [*vocabularies])[0]
    others = [each for each in vocabularies if each is not reference]
    for other in others:
        _check_tokenizers(reference, other)
    _check_bytes([reference, *others])
    return tuple(_doubts(reference, others))


def _check_tokenizers(first: Vocabulary, second: Vocabulary) -> None:
    """Raise an error if two corpora record different tokenizers."""
    tokenizers = {first.tokenizer, second.tokenizer}
    if None not in tokenizers and len(tokenizers) > 1:
        raise CurriculumError(
            f"{second.label} was made with tokenizer {second.tokenizer!r} but "
            f"{first.label} with {first.tokenizer!r}; the same token id would mean "
            "different text, so write one of them again with the other's tokenizer"
        )


def _check_bytes(vocabularies: Sequence[Vocabulary]) -> None:
    """Raise an error if a corpus holds bytes and another certainly does not."""
    one = next((each for each in vocabularies if each.holds_bytes), None)
    other = next((each for each in vocabularies if each.holds_no_bytes), None)
    if one is not None and other is not None:
        raise CurriculumError(
            f"{one} holds bytes and {other} does not: the same token id would mean "
            "different text; write both with one tokenizer, or, if the ids do mean "
            f"the same, {_declared(one, other)}"
        )


def _doubts(reference: Vocabulary, others: Iterable[Vocabulary]) -> Iterator[str]:
    for other in others:
        if other.tokenizer is not None or (reference.holds_bytes and other.holds_bytes):
            continue
        if reference.tokenizer is not None:
            yield (
                f"{other} may have other ids than {reference}: if both are of one "
                f"tokenizer, {_declared(other, reference)}"
            )
        elif other.dtype != reference.dtype and other.dtype.kind in "iu":
            yield (
                f"{other} and {reference} may have ids of two tokenizers, because "
                f"their types differ: if not, {_declared(other, reference)}"
            )


def _declared(one: Vocabulary, other: Vocabulary) -> str:
    """Return how to declare that the ids of two corpora mean the same."""
    if other.tokenizer is not None:
        return f"declare tokenizers={{{one.source.name!r}: {other.tokenizer!r}}}"
    return (
        f"declare one name for both, such as tokenizers={{"
        f"{one.source.name!r}: 'NAME', {other.source.name!r}: 'NAME'}}"
    )
