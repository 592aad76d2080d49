"""The fields of a row that make a document, and the columns made from them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    SupportsIndex,
    TypeAlias,
    cast,
)

import numpy as np

from roxxel_format._spec.dtypes import TEXTS

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

LOSS_MASK = "loss_mask"
Spans: TypeAlias = "tuple[tuple[int, int], ...]"
"""Ranges `[start, stop)`, in order."""

TO_END = sys.maxsize
"""The stop of a span that includes the document's separators."""


class Chat(Protocol):
    """Renders chats as text; `roxxel_prepare` implements it."""

    @property
    def text(self) -> str:
        """The template."""
        ...

    @property
    def identity(self) -> str:
        """A digest of everything that determines the text of a chat."""
        ...

    def render(self, messages: object) -> tuple[str, Spans]:
        """Return the text of a chat, and for which characters the loss counts.

        A span that ends after the text includes the document's separators.

        Raises ValueError, whose message says what to do, for messages that cannot be
        rendered.
        """
        ...


class Origin(NamedTuple):
    """Where a document comes from; its text names the document in errors.

    Attributes:
        where: The input file, part of a file, or block.
        number: Number of the document there, from 0.
        file: Number and name of the input file that counts the document; None for none.
    """

    where: str
    number: int
    file: tuple[int, str] | None

    def __str__(self) -> str:
        return f"{self.where}: document {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """A document, with its `prompt`, `id` or `path` of its file, if it has them.

    `prompt` is None for documents without a prompt. `origin` is where the document
    comes from, None for a document in memory. `learned` are the characters of a chat
    that the loss counts; None for other documents.
    """

    content: object
    prompt: object = None
    id: str | None = None
    path: str | None = None
    origin: Origin | None = None
    learned: Spans | None = None

    @property
    def parts(self) -> tuple[object, ...]:
        """The parts of the document, in order."""
        return (self.content,) if self.prompt is None else (self.prompt, self.content)

    @property
    def text_bytes(self) -> int | None:
        """Size of the texts in UTF-8; None without a text."""
        sizes = [_utf8_size(part) for part in self.parts if isinstance(part, str)]
        return sum(sizes) if sizes else None


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A document as tokens, and for which of them, and separators, the loss counts.

    `num_dropped` counts the characters that the tokenizer left out.
    """

    tokens: np.ndarray[Any, Any]
    row: Row
    learned: Spans = ((0, TO_END),)
    num_dropped: int = 0

    def mask(self, num_tokens: int) -> bytes:
        """Return the loss mask of all tokens, separators included."""
        found = np.zeros(num_tokens, np.uint8)
        for first, last in self.learned:
            found[max(first, 0) : max(last, 0)] = 1
        return found.tobytes()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a row that make a document.

    `text` names the field of the document; by default `text`, and `messages` with
    `chat`. Or `prompt` and `completion` name the fields of its two parts. `id` names
    the field of its id. With `path`, the path of the document's file is stored. With
    `chat`, the document is a list of messages. `chat` is True or the path of a
    template, until `load_intake` has loaded the renderer.

    Attributes:
        contents: The fields that hold the parts of a document.
        names: The fields that a row must have.
        needs_rows: Whether documents must come from rows with fields.
    """

    text: str = ""
    prompt: str | None = None
    completion: str | None = None
    id: str | None = None
    path: bool = False
    chat: Chat | str | os.PathLike[str] | bool = False
    # Kept, because they are asked for each document.
    contents: tuple[str, ...] = field(init=False, repr=False, compare=False)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    needs_rows: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", "messages" if self.chat else "text")
        if self.chat and self.prompt is not None:
            raise ValueError(
                f"chat and prompt={self.prompt!r} are given; pass chat for lists of "
                "messages, or the fields of prompts and completions"
            )
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
        parts = (self.prompt, self.completion)
        contents = (*filter(None, parts),) or (self.text,)
        others = {} if self.id is None else {self.id: None}
        object.__setattr__(self, "contents", contents)
        object.__setattr__(self, "names", (*dict.fromkeys(contents) | others,))
        needs_rows = self.has_mask or self.id is not None
        object.__setattr__(self, "needs_rows", needs_rows)

    @property
    def has_mask(self) -> bool:
        """Whether a document has tokens that the loss leaves out."""
        return self.prompt is not None or bool(self.chat)

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """The columns by name: whether per token or document, and the dtype."""
        masks = {LOSS_MASK: ("token", "uint8")} if self.has_mask else {}
        names = {"id": self.id is not None, "path": self.path}
        return masks | {
            name: ("document", TEXTS) for name, is_kept in names.items() if is_kept
        }

    @property
    def recorded(self) -> dict[str, Any]:
        """The arguments that make columns, for JSON."""
        arguments = {
            "prompt": self.prompt,
            "completion": self.completion,
            "document_id": self.id,
            "path": self.path,
            "chat": getattr(self.chat, "identity", None),
        }
        return {name: value for name, value in arguments.items() if value}

    def part(self, name: str) -> str:
        """Return the name of the part of a document that a field holds."""
        parts = {self.prompt: "prompt", self.completion: "completion"}
        return parts.get(name, "document")

    def passed_as(self, name: str) -> str:
        """Describe a field, and the option that names it, for messages."""
        if name == self.id and name not in self.contents:
            return "the ids as --id"
        if self.prompt is None:
            return f"the {'chat' if self.chat else 'document'}s as --field"
        return f"the {self.part(name)}s as --{self.part(name)}"

    def document(self, values: Mapping[str, object]) -> object:
        """Return the document of a row; `values` maps the fields of `names` to values.

        Raises ValueError, whose message says what to do, for an id that is neither text
        nor an integer, and for messages that cannot be rendered.
        """
        *prompts, content = (values[name] for name in self.contents)
        if not self.needs_rows:
            return content
        number = None if self.id is None else parse_id(values[self.id])
        if self.chat:
            chat = cast("Chat", self.chat)  # loaded before the first document
            text, learned = chat.render(content)
            return Row(text, id=number, learned=learned)
        return Row(content, *prompts, id=number)

    def row(
        self,
        document: object,
        where: str,
        number: int,
        *,
        file: tuple[int, str] | None = None,
        path: str = "",
    ) -> Row:
        """Return a document of a file with its origin, and its path if it is kept.

        For the other arguments, see `Origin`.
        """
        kept, origin = path if self.path else None, Origin(where, number, file)
        if isinstance(document, Row):
            return replace(document, path=kept, origin=origin)
        return Row(document, None, None, kept, origin)


def named_fields(
    text: str | None,
    prompt: str | None,
    completion: str | None,
    document_id: str | None,
    chat: str | os.PathLike[str] | bool,
) -> Fields:
    """Return the fields that a user names; raise ValueError if some exclude others."""
    if text is not None and prompt is not None:
        raise ValueError(
            f"field={text!r} is given with prompt={prompt!r}; pass the field of "
            "documents, or those of prompts and completions"
        )
    if text is not None and document_id is None and not chat:
        raise ValueError(
            f"field={text!r} is given without document_id; pass texts instead of "
            "rows, or name the field of ids too"
        )
    return Fields(text or "", prompt, completion, document_id, chat=chat)


def parse_id(value: object) -> str:
    """Return an id as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return str(index(value))
    raise ValueError(f"id {value!r:.100} is neither a text nor an integer; correct it")


def _utf8_size(text: str) -> int:
    # ASCII text, which Python detects at no cost, has one byte per character.
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
