"""The arguments of a write: one value, from the call to the manifest.

The call makes a recipe, which checks itself. `CorpusWrite` adds what the tokenizer, the
corpus and the first document decide. Then the recipe travels whole: to the processes
that write shards, into the plan of a preparation, and to the commit, which records it
in the manifest. `Fields`, one of the arguments, makes a `Row` of each row of an input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    cast,
    get_args,
)

import numpy as np
from roxxel_store import roxxel_command
from roxxel_store.arguments import as_integer

from roxxel_format._spec.layout import (
    BFLOAT16,
    TEXTS,
    check_block_size,
    check_float,
    item_size,
    metadata_json,
    shard_size_bound,
    stored_dtype,
    stored_name,
)
from roxxel_format._spec.manifest import (
    MIN_UNIT,
    BinTable,
    Manifest,
    tokenizer_identity,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from roxxel_format._spec.layout import Tokens

LOSS_MASK = "loss_mask"
Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
"""Ranges `[start, stop)`, in order."""

TO_END = sys.maxsize
"""The stop of a range that includes the document's separators."""

Exist = Literal["keep", "replace", "append", "error"]
TokenizerBackend = Literal["auto", "tokenizers", "fastokens"]
"""The library that encodes. `"auto"` is `fastokens` if it is installed and supports the
tokenizer, else `tokenizers`. The ids are the same, so no corpus records it.
"""

_CHOICES = {
    "exist": get_args(Exist),
    "tokenizer_backend": get_args(TokenizerBackend),
}


_MADE_BY = {
    "id": "document_id (--document-id)",
    "path": "path=True (--path)",
    LOSS_MASK: "prompt and completion (--prompt, --completion) or chat (--chat)",
}
"""What makes a column of a write."""


class Separator(Enum):
    """A separator that the tokenizer determines."""

    OF_TOKENIZER = "the tokenizer's own"
    """The tokenizer's end-of-text token; no separator without a tokenizer."""

    @staticmethod
    def parse(text: str) -> int | str | None:
        """Parse a token id, the name of a token, or `none`."""
        if text == "none":
            return None
        try:
            return int(text)
        except ValueError:
            from roxxel_store.command import as_text

            return as_text(text)


class WriteArguments(TypedDict, total=False):
    """The keyword arguments that every write has; see `Roxxel.write`.

    Annotate your own function with it if the function passes them on.

    Example:
        >>> from typing import Unpack
        >>> def write_ids(ids: list[int], **arguments: Unpack[WriteArguments]) -> None:
        ...     Roxxel("mine_*.rox").write([ids], **arguments)
        >>> write_ids([5, 6, 7], separator=0, vocab_size=100)
    """

    separator: float | bytes | str | Separator | None
    block_size: int
    max_shard_bytes: int | None
    pack: int | None
    dtype: npt.DTypeLike | None
    vocab_size: int | None
    tokenizer: object | None
    tokenizer_backend: TokenizerBackend
    special_tokens: bool
    without_columns: Sequence[str]
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Chat:
    """Renders chats as text.

    Attributes:
        identity: A digest of everything that determines the text of a chat.
        text: The template.
        render: Returns the text of a chat, and for which characters the loss counts. A
            span that ends after the text includes the document's separators. Raises
            ValueError, whose message says what to do, for messages that cannot be
            rendered.
    """

    identity: str
    text: str = ""
    render: Callable[[object], tuple[str, Ranges]] | None = None


@dataclass(frozen=True)
class Fields:
    """The fields of a row that make a document.

    `text` names the field of the document; by default `text`, and `messages` with
    `chat`. Or `prompt` and `completion` name the fields of its two parts. `id` names
    the field of its id. With `path`, the path of the document's file is stored. With
    `chat`, the document is a list of messages. `chat` is True or the path of a
    template, until `load_intake` has loaded the renderer. With `every`, the document is
    the list of all values of its row.
    """

    text: str = ""
    prompt: str | None = None
    completion: str | None = None
    id: str | None = None
    path: bool = False
    chat: Chat | str | os.PathLike[str] | bool = False
    every: bool = False

    def __post_init__(self) -> None:
        if self.text and self.prompt is not None:
            raise ValueError(
                f"field {self.text!r} and prompt={self.prompt!r}: a document has one "
                "field, or a prompt and a completion; pass the names of one kind"
            )
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

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """The fields that hold the parts of a document."""
        if self.every:
            return ()
        return (*filter(None, (self.prompt, self.completion)),) or (self.text,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields that a row must have."""
        return (*dict.fromkeys([*self.contents, *filter(None, [self.id])]),)

    @cached_property
    def has_mask(self) -> bool:
        """Whether a document has tokens that the loss leaves out."""
        return self.prompt is not None or bool(self.chat)

    @cached_property
    def needs_rows(self) -> bool:
        """Whether documents must come from rows with fields."""
        return self.has_mask or self.id is not None

    @cached_property
    def columns(self) -> dict[str, tuple[str, str]]:
        """The columns by name: per token or document, and item type."""
        kept = {"id": self.id is not None, "path": self.path}
        columns = {LOSS_MASK: ("token", "uint8")} if self.has_mask else {}
        return columns | {name: ("document", TEXTS) for name in kept if kept[name]}

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
            return "the ids as --document-id"
        if self.prompt is None:
            return f"the {'chat' if self.chat else 'document'}s as --field"
        return f"the {self.part(name)}s as --{self.part(name)}"

    def document(self, values: Mapping[str, object]) -> object:
        """Return the document of a row; `values` maps the fields of `names` to values.

        Raises ValueError, whose message says what to do, for an id that is neither text
        nor an integer, and for messages that cannot be rendered.
        """
        if self.every:
            return [*values.values()]
        *prompts, content = (values[name] for name in self.contents)
        if not self.needs_rows:
            return content
        number = None if self.id is None else _parse_id(values[self.id])
        if self.chat:
            chat = cast("Any", self.chat)  # loaded before the first document
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
    learned: Ranges | None = None

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
    """A document as tokens, and for which of them, and separators, the loss counts."""

    tokens: np.ndarray[Any, Any]
    row: Row
    learned: Ranges = ((0, TO_END),)

    def mask(self, num_tokens: int) -> bytes:
        """Return the loss mask of all tokens, separators included."""
        found = np.zeros(num_tokens, np.uint8)
        for first, last in self.learned:
            found[max(first, 0) : max(last, 0)] = 1
        return found.tobytes()


class Side(NamedTuple):
    """One of two corpora: the documents that are held out, or all others.

    Only a document's tokens decide its side, not its separator or dtype. So a write of
    files with `--split`, and a later one of their corpus, hold out the same documents.
    The order and the number of inputs do not matter. `share` is the share of documents
    that are held out.
    """

    name: str
    share: float
    is_held_out: bool

    def has(self, tokens: Tokens) -> bool:
        """Return whether a document is on this side."""
        # Tokens of any width, or of a list, are the same document.
        content = tokens.astype("<i8" if tokens.dtype.kind in "biu" else "<f8")
        digest = blake2b(content.data, digest_size=8).digest()
        held_out = int.from_bytes(digest, "little") < int(self.share * 2**64)
        return held_out == self.is_held_out

    def how_to_append(self) -> str:
        """Describe how to add documents to both sides of the split."""
        split = f"--split {self.name}={self.share}"
        command = roxxel_command(f"prepare write KEPT NEW {split} --exist append")
        return (
            "write the new documents into a corpus NEW of their own, and divide it by "
            f"the same rule with `{command}`; with columns or bins, write two new "
            f"corpora with {split}"
        )

    @staticmethod
    def of(manifest: Manifest) -> Side | None:
        """Return the side of a split that a corpus is; None if it is none."""
        recorded = manifest.last.arguments.get("split")  # Appends have the same.
        return None if recorded is None else Side(*recorded)


@dataclass(frozen=True)
class Recipe:
    """The arguments of one write; see `Roxxel.write` and `write_files`.

    Attributes:
        OWN_METADATA: The keys of a shard's metadata that only a write sets.
        fields: The fields of rows.
        side: The documents to write: those on one side of a split.
        lengths: The documents to write: those with so many tokens, separator included,
            from the least to the greatest; None is no limit.
        shuffle: The seed that orders the units, and the documents in each unit.
        skip_bad: Whether damaged inputs are skipped.
        inputs: What stands for the inputs, as JSON; None for documents in memory.
        tokenizer_record: What the manifest says of the tokenizer.
        encoder: What encodes the texts, with versions; None if unknown. An append may
            use another one, because all give the same ids.
        tokenizer_file: Name and size of the file that keeps the tokenizer.
        stored: Name of the item type on the disk; None until the corpus or a document
            decides it.
        kind: `"text"` or `"tokens"`; None until the corpus or a document decides it.

    Example:
        >>> Recipe(dtype=np.uint16, separator=0).recorded["dtype"]
        'uint16'
    """

    OWN_METADATA: ClassVar[frozenset[str]] = frozenset(
        {"arguments", "created_by", "cut", "input_files", "padding", "separator"}
        | {"skipped", "tokenizer", "tokenizer_file", "unit"}
    )

    separator: float | bytes | str | Separator | None = Separator.OF_TOKENIZER
    block_size: int = 4096
    max_shard_bytes: int | None = None
    dtype: npt.DTypeLike | None = None
    vocab_size: int | None = None
    tokenizer: object | None = None
    tokenizer_backend: TokenizerBackend = "auto"
    special_tokens: bool = False
    pack: int | None = None
    without_columns: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    exist: Exist = "keep"
    fields: Fields = field(default_factory=Fields)
    side: Side | None = None
    lengths: tuple[int, int | None] | None = None
    shuffle: int | None = None
    skip_bad: bool = False
    inputs: Mapping[str, Any] | str | None = None
    tokenizer_record: Mapping[str, Any] | None = None
    encoder: str | None = None
    tokenizer_file: tuple[str, int] | None = None
    stored: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        given: dict[str, Any] = {}
        for name in ("block_size", "max_shard_bytes", "vocab_size", "shuffle", "pack"):
            value, least = getattr(self, name), MIN_UNIT if name == "pack" else None
            given[name] = None if value is None else as_integer(name, value, least)
        if isinstance(self.separator, np.generic):
            given["separator"] = self.separator.item()
        elif self.tokenizer is None and self.separator is Separator.OF_TOKENIZER:
            given["separator"] = None
        elif self.tokenizer is None and isinstance(self.separator, str):
            separator_items(self.separator, "uint8")  # Raises.
        if self.dtype is not None:
            given["dtype"] = stored_name(self.dtype)
        for name, value in given.items():
            object.__setattr__(self, name, value)
        choices = {
            "special_tokens": self.special_tokens,
            "skip_bad": self.skip_bad,
            "path": self.fields.path,
        }
        for name, value in cast("dict[str, object]", choices).items():
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r:.50}")
        if not isinstance(cast("object", self.metadata), Mapping | None):
            raise TypeError(
                f"metadata must be a dict, got a {type(self.metadata).__name__}; "
                'pass such as {"source": "..."}'
            )
        self._check()
        _ = self.in_shards, self.chooses  # Raises for bytes that are not whole items.

    @cached_property
    def ending(self) -> tuple[int | float, ...]:
        """The items that end each document.

        Empty until the separator and the item type are decided.
        """
        separator = self.separator
        if self.stored is None or isinstance(separator, Separator | str):
            return ()
        return separator_items(separator, self.stored)

    @cached_property
    def in_shards(self) -> dict[str, Any]:
        """What each shard's metadata says of its corpus; see `Manifest.of_shard`."""
        found: dict[str, Any] = {"separator": [*self.ending]}
        if self.tokenizer_record is not None:
            found["tokenizer"] = self.tokenizer_record
        return found

    @property
    def manifest(self) -> Manifest:
        """The manifest with which a corpus of this recipe begins, without shards."""
        return Manifest(
            dtype_name=self.stored,
            block_size=self.block_size,
            separator=self.ending,
            tokenizer=self.tokenizer_record,
            kind=self.kind,
            bins=None if self.pack is None else BinTable(self.pack),
        )

    @cached_property
    def chooses(self) -> bool:
        """Whether the write leaves documents to another corpus."""
        return self.side is not None or self.lengths is not None

    def _check(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got "
                    f"{getattr(self, name)!r}"
                )
        if self.without_columns and self.exist != "append":
            raise ValueError(
                f"without_columns={[*self.without_columns]} is for "
                'exist="append", where a corpus has columns already, but '
                f"exist={self.exist!r}; leave it out"
            )
        check_block_size(self.block_size)
        if self.max_shard_bytes is not None:
            num_bytes = len(metadata_json(self.metadata or {}))
            least = shard_size_bound(8, self.block_size, num_bytes)
            least += 2 * self.block_size
            if self.max_shard_bytes < least:
                raise ValueError(
                    f"max_shard_bytes={self.max_shard_bytes} is too small for a shard; "
                    f"use at least {least}"
                )
        own = sorted(self.OWN_METADATA.intersection(self.metadata or ()))
        if own:
            raise ValueError(
                f"metadata has {own[0]!r}, by which a reader knows what a write "
                "made; leave it out, also when you pass on the metadata of another "
                "corpus"
            )

    @property
    def may_make_several(self) -> bool:
        """Whether the write may make several shards, or add a shard."""
        return self.max_shard_bytes is not None or self.exist == "append"

    def why_no_file(self, *, is_several: bool) -> str:
        """Return why one file cannot hold the corpus; empty if it can."""
        if self.fields.columns:
            return f"it has no columns, such as {next(iter(self.fields.columns))!r}"
        if self.pack is not None:
            return f"it cannot say how pack={self.pack} (--pack) has packed it"
        if self.may_make_several:
            return (
                'max_shard_bytes and exist="append", which add shards, cannot write it'
            )
        return "several processes cannot write it" if is_several else ""

    def check_brings(self, manifest: Manifest, what: str) -> None:
        """Raise ValueError unless new documents bring exactly the columns of a corpus.

        A column that only some shards have cannot be read.
        """
        columns = self.fields.columns
        for name, (per, dtype) in columns.items():
            old = manifest.columns.get(name)
            if old is None:
                raise ValueError(
                    f"{what}: has no column {name!r}, so that of the new documents "
                    f"could not be read; leave {_MADE_BY.get(name, name)} out, write "
                    "another corpus, or first write the column with "
                    f"write_column({name!r}, ...)"
                )
            if (old.per, old.dtype) != (per, dtype):
                raise ValueError(
                    f"{what}: its column {name!r} holds {old.dtype} per {old.per}, so "
                    f"{dtype} per {per} cannot be appended; replace that column with "
                    "write_column, or write another corpus"
                )
        for name in manifest.columns:
            if name not in {*columns, *self.without_columns}:
                option = f"pass {_MADE_BY[name]}, or " if name in _MADE_BY else "pass "
                raise ValueError(
                    f"{what}: has a column {name!r}, which could not be read any more "
                    f"without values for the new documents; {option}"
                    f"without_columns=[{name!r}] (--without-columns {name}), and then "
                    f'write the values with write_column({name!r}, ..., exist="append")'
                )

    @property
    def is_first(self) -> bool:
        """Whether no other corpus of the same command is written before this one."""
        begins = self.lengths is None or not self.lengths[0]
        return begins and (self.side is None or self.side.is_held_out)

    def has(self, tokens: Tokens, length: int) -> bool:
        """Return whether a document is written; `length` counts its separator too."""
        if self.lengths is not None:
            least, greatest = self.lengths
            if length < least or (greatest is not None and length > greatest):
                return False
        return self.side is None or self.side.has(tokens)

    def decided(self, stored: str | None, kind: str | None) -> Recipe:
        """Return this recipe, with an item type and a kind if it has none."""
        return replace(self, stored=self.stored or stored, kind=self.kind or kind)

    @property
    def recorded(self) -> dict[str, Any]:
        """The arguments that determine the content of the shards, as JSON.

        The manifest records them, and `exist="keep"` compares them.
        """
        separator = self.separator
        recorded: dict[str, Any] = {
            "separator": separator,
            "special_tokens": self.special_tokens,
            "block_size": self.block_size,
            "max_shard_bytes": self.max_shard_bytes,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": tokenizer_identity(self.tokenizer_record),
        }
        if isinstance(separator, bytes):
            recorded["separator"] = {"bytes": separator.hex()}
        others = {
            "pack": self.pack,
            **self.fields.recorded,
            "split": None if self.side is None else [*self.side],
            "shuffle": self.shuffle,
            "skip_bad": self.skip_bad or None,
            "lengths": None if self.lengths is None else [*self.lengths],
            "inputs": self.inputs,
        }
        return recorded | {k: each for k, each in others.items() if each is not None}

    def digest(self, base: str | None, *facts: object) -> str:
        """Return 12 hexadecimal digits that name the job of this recipe.

        Args:
            base: Fingerprint of the corpus before the write.
            *facts: What else determines the shards, as JSON.
        """
        # `skip_bad` does not change units without damage.
        recorded = replace(self, skip_bad=False).recorded
        known = [recorded, self.metadata, base, self.stored, self.kind, *facts]
        text = json.dumps(known, sort_keys=True)
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return what a commit needs of this recipe; `parse` is the inverse."""
        names = "without_columns", "exist", *_DECIDED
        return {
            "arguments": self.recorded,
            **{name: getattr(self, name) for name in names},
        }

    @staticmethod
    def copying(metadata: Mapping[str, Any], ending: bytes, **arguments: Any) -> Recipe:
        """Return a recipe that writes documents of another corpus as they are.

        Args:
            metadata: Metadata of a shard of that corpus.
            ending: The items that end each document, as stored.
            **arguments: The other arguments.
        """
        own = Recipe.OWN_METADATA
        return Recipe(
            separator=ending or None,
            metadata={k: each for k, each in metadata.items() if k not in own},
            tokenizer_record=metadata.get("tokenizer"),
            **arguments,
        )

    @staticmethod
    def parse(table: Mapping[str, Any]) -> Recipe:
        """Return a recipe that can be committed, from what `as_json` has returned."""
        given: dict[str, Any] = dict(table["arguments"])
        renders = given.pop("chat", None)
        fields = Fields(
            "",
            given.pop("prompt", None),
            given.pop("completion", None),
            given.pop("document_id", None),
            given.pop("path", False),
            False if renders is None else Chat(renders),
        )
        given["separator"] = as_given("separator", given["separator"])
        split, lengths = given.pop("split", None), given.get("lengths")
        given |= {
            "tokenizer": None,  # A commit loads none.
            "side": None if split is None else Side(*split),
            "lengths": None if lengths is None else tuple(lengths),
        }
        others = {name: each for name, each in table.items() if name != "arguments"}
        file = others["tokenizer_file"]
        others["tokenizer_file"] = None if file is None else tuple(file)
        return Recipe(**given, **others, fields=fields)


_DECIDED = ("tokenizer_record", "encoder", "tokenizer_file", "stored", "kind")


def separator_items(separator: object, name: str) -> tuple[int | float, ...]:
    """Return the items that end each document; empty if `separator` is None.

    Converts bytes to little-endian items of dtype `name`, padded with zeros to a whole
    item.
    """
    if separator is None:
        return ()
    if isinstance(separator, bytes):
        return _separator_from_bytes(separator, name)
    is_number = isinstance(separator, (int, float))
    if not is_number or (isinstance(separator, bool) and name != "bool"):
        raise TypeError(
            f"separator must be a token, bytes or None, got {separator!r}; "
            "encode text first"
        )
    if isinstance(separator, float):  # Before a preparation stores its plan.
        check_float("separator", separator, name)
    return (separator,)


def _separator_from_bytes(separator: bytes, name: str) -> tuple[int | float, ...]:
    size = item_size(name)
    if not separator or (len(separator) > size and len(separator) % size):
        raise ValueError(
            f"separator {separator!r} has {len(separator)} bytes; use up to {size} "
            f"bytes or whole items of {name} ({size} bytes each)"
        )
    filled = separator.ljust(-(-len(separator) // size) * size, b"\0")
    dtype = np.dtype("<u2") if name == BFLOAT16 else stored_dtype(name)
    if name == "bool" and max(filled) > 1:
        raise ValueError(
            f"separator {separator!r} holds bytes other than 0 and 1, the only ones "
            "of a bool"
        )
    return tuple(np.frombuffer(filled, dtype).tolist())


def as_given(name: str, recorded: Any) -> Any:
    """Return an argument as the caller gives it, from its record."""
    if name == "split" and recorded is not None:
        return f"{recorded[0]}={recorded[1]}".removeprefix("=")
    if name == "separator" and isinstance(recorded, dict):
        return bytes.fromhex(cast("dict[str, str]", recorded)["bytes"])
    return recorded


def _parse_id(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return str(index(value))
    raise ValueError(f"id {value!r:.100} is neither a text nor an integer; correct it")


def _utf8_size(text: str) -> int:
    # ASCII text, which Python detects at no cost, has one byte per character.
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
