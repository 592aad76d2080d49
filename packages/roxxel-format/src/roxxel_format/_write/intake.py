"""Convert a user's documents to flat arrays."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.errors import reason_of
from roxxel_store.screen import note

from roxxel_format._spec.layout import stored_name, value_range
from roxxel_format._spec.manifest import tokenizer_identity
from roxxel_format._write.casting import (
    Caster,
    DocumentError,
    DocumentTypeError,
    OutOfRangeError,
    number_array,
)
from roxxel_format._write.recipe import (
    TO_END,
    EncodedRow,
    Row,
)
from roxxel_format._write.tokenizers import (
    chat_renderer,
    chat_tokenizer,
    encoded_ids,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel_format._spec.layout import Tokens
    from roxxel_format._write.recipe import Fields, Ranges, Recipe
    from roxxel_format._write.tokenizers import Tokenizer

_BATCH_TEXTS = 256
_BATCH_CHARACTERS = 1 << 20
_NO_TOKENS = np.empty(0, np.int64)


class _RowError(DocumentError):
    """A row is not a mapping, or lacks a field."""


def load_intake(recipe: Recipe, *, says_ending: bool = False) -> Intake:
    """Load what encodes the documents of a write, and decide how they end.

    The recipe of the intake has what the tokenizer decides: what ends each document,
    the renderer of chats, and the record of the tokenizer. With `says_ending`, print
    how documents end if the tokenizer determines it.
    """
    tokenizer = load_tokenizer(recipe)
    recipe = _with_chat(recipe, tokenizer)
    if tokenizer is None and recipe.special_tokens:
        raise ValueError("special_tokens needs a tokenizer; pass tokenizer")
    ended = recipe if tokenizer is None else tokenizer.ended(recipe)
    stored = None if recipe.dtype is None else str(recipe.dtype)
    if stored is None and recipe.vocab_size is not None:
        stored = _vocabulary_name(recipe.vocab_size)
    decided = replace(ended, stored=recipe.stored or stored)
    if tokenizer is None:
        return Intake(decided)
    record, encoder = tokenizer.to_dict(), tokenizer.encoder
    decided = replace(decided, tokenizer_record=record, encoder=encoder)
    intake = intake_of(decided, tokenizer)
    if tokenizer.may_drop and recipe.is_first:
        note(
            f"{tokenizer.name} leaves out the characters of a text that its vocabulary "
            "lacks, because it has no token for unknown ones"
        )
    if says_ending:
        note(tokenizer.ending(recipe), end="")
        note(tokenizer.encoding(), end="")
    return intake


def intake_of(recipe: Recipe, tokenizer: Tokenizer | None) -> Intake:
    """Return the intake of a write whose recipe has what the tokenizer decides.

    Raises ValueError if that was another tokenizer.
    """
    known = tokenizer_identity(recipe.tokenizer_record)
    if tokenizer is not None and tokenizer.identity != known:
        raise ValueError(
            f"{tokenizer.name}: is {tokenizer.identity} here and now, but {known} "
            "where and when this write began; copy that tokenizer to every machine, or "
            "write again"
        )
    end = None if tokenizer is None else tokenizer.repeated_end(recipe)
    return Intake(recipe, tokenizer, end)


def load_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """Load the tokenizer of a write, if the recipe names one."""
    found = None
    has_chats = bool(recipe.fields.chat)
    if recipe.tokenizer is not None:
        found = load(
            recipe.tokenizer,
            special_tokens=recipe.special_tokens,
            # Only this one says which characters a token has.
            backend="tokenizers" if has_chats else recipe.tokenizer_backend,
        )
    is_possible = found is not None and found.encoder and not has_chats
    if recipe.tokenizer_backend == "fastokens" and not is_possible:
        raise ValueError(
            'tokenizer_backend="fastokens" (--tokenizer-backend) encodes texts other '
            "than chats, for a tokenizer.json or a name on the Hugging Face hub; leave "
            "it out"
        )
    return chat_tokenizer(found) if has_chats else found


def _with_chat(recipe: Recipe, tokenizer: Tokenizer | None) -> Recipe:
    chat = recipe.fields.chat
    if not isinstance(chat, (str, os.PathLike, bool)) or not chat:
        return recipe
    assert tokenizer is not None  # noqa: S101 - `chat_tokenizer` raises without one
    refused = () if recipe.special_tokens else tuple(tokenizer.special_ids)
    template = None if isinstance(chat, bool) else chat
    loaded = chat_renderer(recipe.tokenizer, template, refused)
    return replace(recipe, fields=replace(recipe.fields, chat=loaded))


@dataclass(slots=True)
class Intake:
    """Converts documents of one kind, `"text"` or `"tokens"`, to arrays.

    If the recipe leaves the item type or the kind open, the first document decides it
    in the recipe, the item type with items. Without a `tokenizer`, `str` documents are
    encoded as UTF-8. A tokenizer that supports batches encodes up to 256
    texts, or about 1 MiB, at a time. `added_end` is what ends each document if the
    tokenizer puts it at the end of each text, or if a chat template may. It is then
    removed, because the writer appends it.
    """

    recipe: Recipe
    tokenizer: Tokenizer | None = None
    added_end: int | None = None
    _dtype_if_empty: str | None = None

    def one_by_one(self) -> Intake:
        """Return an intake that encodes each text only when it is requested."""
        if self.tokenizer is None:
            return self
        tokenizer = replace(self.tokenizer, encode_batch=None, encode_parts=None)
        return replace(self, tokenizer=tokenizer)

    def _has(self, tokens: Tokens) -> bool:
        """Return whether the write has a document; call it after the first document."""
        if tokens.ndim != 1:
            return True
        recipe = self.recipe
        if value_range(str(recipe.stored)) is None:  # Cast as a reader finds them.
            caster = Caster(str(recipe.stored))
            try:
                caster.check_source(tokens.dtype, 0)
                tokens = caster.cast(tokens)
            except (DocumentTypeError, OutOfRangeError):
                return True  # The writer raises again, and names the document.
        return recipe.has(tokens, tokens.size + len(recipe.ending))

    def arrays(self, documents: Iterable[object]) -> Iterator[Tokens]:
        """Yield the items of each document after the item type is known.

        Holds empty documents back until a document with items determines the type.
        If all documents are empty, the first array of integers determines the type;
        without such an array, it is uint32.
        """
        num_waiting = 0
        encoded = enumerate(self.encoded(documents))
        arrays = (self._array(each, number) for number, each in encoded)
        for items in arrays:
            if self.recipe.stored is None:
                num_waiting += 1
                continue
            yield from [items[:0]] * num_waiting
            yield items
            yield from arrays
            return
        if num_waiting:
            self._decide(self._dtype_if_empty or "uint32", None)
            yield from [np.empty(0, np.uint8)] * num_waiting

    def encoded(self, documents: Iterable[object]) -> Iterator[object]:
        """Yield documents; the tokenizer has already encoded texts, in batches."""
        if self.tokenizer is None or self.tokenizer.encode_batch is None:
            return iter(documents)
        return _batched(documents, self.tokenizer)

    def chosen(self, rows: Iterable[object]) -> Iterator[EncodedRow]:
        """Yield the documents that the write has; see `rows`."""
        found = self.rows(rows)
        if not self.recipe.chooses:
            return found
        return (row for row in found if self._has(row.tokens))

    def rows(self, rows: Iterable[object]) -> Iterator[EncodedRow]:
        """Yield documents with fields, or with an origin; see `arrays`.

        Prompt and completion are encoded separately, so that no token spans the border.
        Tokens that the tokenizer puts before or after each text come before the prompt
        and after the completion. A chat is encoded as a whole. An error names the
        origin of its document.
        """
        waiting: deque[Row] = deque()  # The rows that `arrays` has read ahead.
        fields = self.recipe.fields
        of_parts, before, after = self._for_parts()
        of_chats: deque[Ranges] = deque()
        if fields.chat:
            parts = self._chats_of(_as_rows(rows, fields), waiting, of_chats)
        else:
            parts = _parts_of(_as_rows(rows, fields), waiting)
        arrays = of_parts.arrays(parts)
        num_yielded = 0
        while True:
            try:
                first = next(arrays, None)
                if first is None:
                    return
                found = [first] if fields.prompt is None else [first, next(arrays)]
            except _RowError:
                raise
            except (DocumentError, DocumentTypeError) as error:
                named = error
                if fields.prompt is not None:
                    number, part = divmod(error.document, 2)
                    name = "completion" if part else "prompt"
                    named = type(error)(number, f": its {name}{error.problem}")
                row = waiting[named.document - num_yielded]
                raise named.of(row.origin) from error
            self.recipe = of_parts.recipe
            row, tokens = waiting.popleft(), first
            learned = of_chats.popleft() if fields.chat else ((0, TO_END),)
            if fields.prompt is not None:
                learned = ((before.size + first.size, TO_END),)
                tokens = _joined([before, *found, after])
            yield EncodedRow(tokens, row, learned)
            num_yielded += 1

    def _chats_of(
        self, rows: Iterable[Row], waiting: deque[Row], learned: deque[Ranges]
    ) -> Iterator[object]:
        """Yield chats as `Encoded`; record rows, and which tokens the loss counts."""
        tokenizer = self.tokenizer
        assert tokenizer is not None  # noqa: S101 - loaded with the chats
        encode = tokenizer.encode_chat
        assert encode is not None  # noqa: S101 - loaded with the chats
        for number, row in enumerate(rows):
            waiting.append(row)
            text = str(row.content)
            said = row.learned or ()
            try:
                ids, spans = encode(text, said)
            except Exception as error:  # the library raises bare Exception
                raise DocumentError(number, _not_encoded(error)) from error
            ends = any(stop > len(text) for _, stop in said)
            size = self._without_end(ids).size
            learned.append((*spans, (size, TO_END)) if ends else spans)
            yield Encoded(ids)

    def _for_parts(self) -> tuple[Intake, Tokens, Tokens]:
        """Return an intake for the parts of documents.

        It also returns the tokens to put before and after all parts.
        """
        if self.tokenizer is None or self.recipe.fields.prompt is None:
            return replace(self), _NO_TOKENS, _NO_TOKENS
        tokenizer, before, after = self.tokenizer.for_parts()
        if self.added_end is not None and after[-1:].tolist() == [self.added_end]:
            after = after[:-1]
        return replace(self, tokenizer=tokenizer, added_end=None), before, after

    def _array(self, document: object, number: int) -> Tokens:
        """Return the items of a document, shape `(n,)`; decide kind and type if open.

        Raises DocumentError or DocumentTypeError with `number`.
        """
        if type(document) is np.ndarray:
            kind, items = "tokens", document
        else:
            kind, items = self._parsed(document, number)
        if self.recipe.kind is None:
            self._decide(None, kind)
        elif kind != self.recipe.kind:
            raise DocumentTypeError(
                number,
                f" is {_type_name(document)}, but the corpus holds {self.recipe.kind}; "
                "write text and ready-made tokens into different corpora",
            )
        stored = self.recipe.stored
        if items.dtype.kind == "b" and stored not in (None, "bool"):
            raise DocumentTypeError(
                number,
                f" holds booleans, but the corpus holds {stored}; convert them to "
                "integers if they are tokens",
            )
        if items.ndim != 1:
            raise DocumentError(
                number,
                f" has shape {items.shape}; pass a flat array for each document",
            )
        if stored is None:
            dtype = self._first_dtype(document, items, number)
            if items.size or kind == "text":
                self._decide(dtype, None)
            elif items.dtype.kind in "biu":
                self._dtype_if_empty = self._dtype_if_empty or dtype
        return items

    def _decide(self, stored: str | None, kind: str | None) -> None:
        self.recipe = self.recipe.decided(stored, kind)

    def _parsed(self, document: object, number: int) -> tuple[str, Tokens]:
        if isinstance(document, Encoded):
            return "text", self._without_end(encoded_ids(document.encoded))
        if isinstance(document, str):
            return "text", self._encoded(document, number)
        if isinstance(document, memoryview) and document.itemsize > 1:
            return "tokens", np.asarray(document)
        if isinstance(document, (bytes, bytearray, memoryview)):
            if self.tokenizer is not None:
                raise DocumentTypeError(
                    number,
                    " is bytes, which a tokenizer cannot encode; decode it to str, or "
                    "leave the tokenizer out",
                )
            return "text", np.frombuffer(cast("bytes", document), np.uint8)
        if isinstance(document, Sequence):
            return "tokens", _from_list(cast("Sequence[object]", document), number)
        if hasattr(document, "__array__"):
            return "tokens", np.asarray(document)
        raise DocumentTypeError(
            number,
            f" is a {type(document).__name__}; pass an array, a list of ints, str or "
            "bytes for each document, or rows with document_id",
        )

    def _encoded(self, text: str, number: int) -> Tokens:
        if self.tokenizer is None:
            try:
                return np.frombuffer(text.encode(), np.uint8)
            except UnicodeEncodeError as error:
                raise DocumentError(
                    number,
                    f" cannot be encoded as UTF-8 ({error.reason} at character "
                    f"{error.start}); correct the text",
                ) from error
        try:
            encoded = self.tokenizer.encode(text)
        except Exception as error:  # the libraries raise exceptions of many types
            raise DocumentError(number, _not_encoded(error)) from error
        return self._without_end(encoded_ids(encoded))

    def _without_end(self, ids: Tokens) -> Tokens:
        """Return the ids of a text without the end that the tokenizer added."""
        if self.added_end is not None and ids[-1:].tolist() == [self.added_end]:
            return ids[:-1]
        return ids

    def _first_dtype(self, document: object, items: Tokens, number: int) -> str:
        if isinstance(document, (str, Encoded)) and self.tokenizer is not None:
            size = self.tokenizer.vocab_size
            return _vocabulary_name(size) if size else "uint32"
        if isinstance(document, (list, tuple)) and items.dtype.kind in "iu":
            return "uint32"
        is_list = isinstance(document, (list, tuple)) and items.dtype.kind == "f"
        if is_list and (items == np.floor(items)).all():
            # As pandas makes of ids in a column with a gap.
            raise DocumentError(
                number,
                f" holds {items[0]} and no fraction, so it may hold ids that became "
                'floats; pass integers, or pass dtype="float64" (--dtype)',
            )
        return stored_name(items.dtype)


def _not_encoded(error: Exception) -> str:
    return (
        f" cannot be encoded by the tokenizer ({reason_of(error)}); correct the text, "
        "or pass another tokenizer"
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text that the tokenizer, here or in another write, has encoded already."""

    encoded: object


def _batched(documents: Iterable[object], tokenizer: Tokenizer) -> Iterator[object]:
    """Yield documents, texts as `Encoded`; reads up to one batch ahead.

    If the tokenizer cannot encode a batch, yields its texts, so that the error names
    one of them.
    """
    texts: list[str] = []
    size = 0
    for document in documents:
        if isinstance(document, str):
            texts.append(document)
            size += len(document)
            if len(texts) < _BATCH_TEXTS and size < _BATCH_CHARACTERS:
                continue
        yield from _encoded(texts, tokenizer)
        texts, size = [], 0
        if not isinstance(document, str):
            yield document
    yield from _encoded(texts, tokenizer)


def _encoded(texts: list[str], tokenizer: Tokenizer) -> Iterator[object]:
    found: list[object] = [*texts]
    if texts and tokenizer.encode_batch is not None:
        with contextlib.suppress(Exception):  # The libraries raise many error types.
            found = [*map(Encoded, tokenizer.encode_batch(texts))]
    yield from found


def _parts_of(rows: Iterable[Row], waiting: deque[Row]) -> Iterator[object]:
    for row in rows:
        waiting.append(row)
        yield from row.parts


def _joined(parts: list[Any]) -> Tokens:
    """Concatenate arrays; an empty array does not affect the dtype."""
    filled = [part for part in parts if part.size]
    return np.concatenate(filled) if filled else parts[0]


def _vocabulary_name(vocab_size: int) -> str:
    """Return the smaller of uint16 and uint32 that holds ids below `vocab_size`."""
    if not 1 <= vocab_size <= 2**32:
        raise ValueError(f"vocab_size must be in [1, 2**32], got {vocab_size}")
    return "uint16" if vocab_size <= 2**16 else "uint32"


def _type_name(document: object) -> str:
    return "str" if isinstance(document, Encoded) else type(document).__name__


def _from_list(document: Sequence[object], number: int) -> Tokens:
    if not document:
        return np.empty(0, np.uint8)
    try:
        items = number_array(document)
    except (ValueError, OverflowError) as error:
        raise DocumentTypeError(
            number,
            f" is a list but not of numbers ({error}); pass a flat list of ints",
        ) from error
    if items.dtype.kind in "iuf" and bool in set(map(type, document)):
        # In Python a boolean is an integer; nobody who writes ids means one.
        at = next(at for at, each in enumerate(document) if type(each) is bool)
        raise DocumentTypeError(
            number,
            f" holds {document[at]} at index {at} beside numbers; pass integers alone",
        )
    if items.dtype.kind in "biuf":
        return items
    numbers = int, float, np.integer, np.floating, np.bool
    for index, each in enumerate(document):
        if not isinstance(each, numbers):
            remedy = "pass a flat list of ints"
            if isinstance(each, dict):
                remedy = "pass chat=True (--chat) for messages, or a flat list of ints"
            raise DocumentTypeError(
                number, f" holds {each!r:.50} at index {index}; {remedy}"
            )
    raise DocumentError(
        number, " holds an integer of more than 64 bits; correct the document"
    )


def _as_rows(rows: Iterable[object], fields: Fields) -> Iterator[Row]:
    """Convert mappings to `Row` objects; rows read from files already are."""
    for number, row in enumerate(rows):
        yield row if isinstance(row, Row) else _row(number, row, fields)


def _row(number: int, row: object, fields: Fields) -> Row:
    if not isinstance(row, Mapping):
        raise _RowError(
            number,
            f" is a {type(row).__name__}; pass a mapping with the fields "
            f"{' and '.join(map(repr, fields.names))}",
        )
    table = cast("Mapping[str, object]", row)
    for name in fields.names:
        if name not in table:
            raise _RowError(
                number,
                f" has no field {name!r}, only {', '.join(map(str, table))}; name the "
                "fields of the rows",
            )
    try:
        document = fields.document(table)
    except ValueError as error:
        raise _RowError(number, f": its {error}") from error
    assert isinstance(document, Row)  # noqa: S101 - `fields` needs rows
    return document
