"""The fields of rows that make documents, and the columns of these documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

LOSS_MASK = "loss_mask"


@dataclass(frozen=True, slots=True)
class Row:
    """A document that is more than text or tokens: with a `prompt` before it."""

    content: object
    prompt: object

    @property
    def parts(self) -> tuple[object, object]:
        """The parts of the document, in order."""
        return self.prompt, self.content


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A document as tokens, of which the first `num_prompt` are its prompt."""

    tokens: np.ndarray[Any, Any]
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a row that make a document.

    `text` is the document, or `prompt` and `completion` are its two parts.
    """

    text: str = "text"
    prompt: str | None = None
    completion: str | None = None

    def __post_init__(self) -> None:
        given, missing = ("prompt", "completion")
        if self.prompt is None:
            given, missing = missing, given
        if (self.prompt is None) != (self.completion is None):
            raise ValueError(
                f"{given}={getattr(self, given)!r} is given without {missing}; pass "
                "the fields of both"
            )
        if self.prompt is not None and self.prompt == self.completion:
            raise ValueError(
                f"prompt and completion are both {self.prompt!r}; pass two fields"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that a row must have."""
        if self.prompt is None or self.completion is None:
            return (self.text,)
        return (self.prompt, self.completion)

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """What each column of the documents is per, and its dtype, by name."""
        return {} if self.prompt is None else {LOSS_MASK: ("token", "uint8")}

    @property
    def recorded(self) -> dict[str, str]:
        """The arguments that make columns, for JSON."""
        if self.prompt is None or self.completion is None:
            return {}
        return {"prompt": self.prompt, "completion": self.completion}

    def part(self, name: str) -> str:
        """Return what part of a document a field is."""
        parts = {self.prompt: "prompt", self.completion: "completion"}
        return parts.get(name, "document")

    def passed_as(self, name: str) -> str:
        """Describe a field, and the option that names it, for messages."""
        if self.prompt is None:
            return "the documents as --field"
        return f"the {self.part(name)}s as --{self.part(name)}"

    def document(self, values: Mapping[str, object]) -> object:
        """Return the document of a row, from the values of `names`."""
        if self.prompt is None or self.completion is None:
            return values[self.text]
        return Row(values[self.completion], values[self.prompt])
