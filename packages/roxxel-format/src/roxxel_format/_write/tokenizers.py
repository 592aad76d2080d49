"""Adapt a tokenizer, and find its end-of-text token and its identity.

It is the tokenizer of a library, without what is random in it, or our own of bytes
(`ByteTokenizer`).

By default, if a text spells a special token, such as `<|endoftext|>`, it is encoded as
ordinary text. Otherwise a web page could end a document by spelling the token. The
defaults of the libraries differ: `tokenizers` and `transformers` encode the special
token, and `tiktoken` refuses the text.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store import missing_extra

from roxxel_format._spec.kept_tokenizer import FILES_BESIDE, TOKENIZER_FILE
from roxxel_format._write.recipe import Chat, Separator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from roxxel_format._spec.layout import Tokens
    from roxxel_format._write.recipe import Ranges, Recipe

END_OF_TEXT = "<|endoftext|>"
"""Name of the token that ends a text of `ByteTokenizer`."""

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_ALPHABET = tuple(
    chr(byte if byte in _PRINTABLE else 256 + _OTHERS.index(byte))
    for byte in range(256)
)
"""The character by which a byte-level model of `tokenizers` spells each byte.

As in GPT-2 (Radford et al., 2019), printable bytes stand for themselves, and the other
bytes are numbered from U+0100.
"""

_NAME_THE_END = "pass separator (--separator): a token, its name, or none"

_RANDOM_SETTINGS = ("dropout", "alpha", "nbest_size")
_SAMPLE = (
    "The quick brown fox jumps over the lazy dog, and 0123456789 other animals watch "
    "them from the neighbouring hills without understanding anything.\n"
) * 4
_NUM_REPEATS = 4

Encode = Callable[[str], Any]
"""Returns the ids of a text, or an object with `ids`."""

EncodeBatch = Callable[[list[str]], list[Any]]
"""Returns what `Encode` returns, for each of several texts."""

EncodeChat = Callable[[str, "Ranges"], "tuple[Tokens, Ranges]"]
"""Returns the ids of a text, and which tokens the loss counts, from its characters."""

# End-of-text tokens of well-known tokenizers, for those that name none.
_ENDS_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eos|>",
    "<eos>",
    "</s>",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # of DeepSeek
)
_STARTS_OF_TEXT = (
    "<s>",
    "<bos>",
    "<|bos|>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "[BOS]",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",  # of DeepSeek
)
# Ends of a turn in a chat, which a tokenizer may name as its end. A text ends with
# its end-of-text token all the same.
_ENDS_OF_TURN = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
}
_MAX_NAMES = 8
_MAX_TRIED = 1000


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A loaded tokenizer.

    `encode` encodes a document without truncation or padding. It may be a method of a
    copy of `source`. `encode_batch` encodes several documents in one call; None if that
    is not faster. `encode_part` and `encode_parts` do the same without special tokens
    before or after the text; None if the library cannot. `name` is for messages. `hash`
    is a digest of the definition or the vocabulary; None if neither is known.
    `special_ids` maps the text of each special token to its id. `named_end` is the
    end-of-text token that the tokenizer's files or its object name. `drops` counts the
    characters of a text that have no token; None if all have one. `encoder` names the
    library that encodes, with its version, if the tokenizer was loaded by path or name.
    `encoder_note` is a remark about that library, for the user. `switched_off` names
    what was random. `encode_chat` encodes the texts of chats, if the write has chats.
    `files` are the texts of the tokenizer's files by name, `tokenizer.json` among them;
    empty if there is no such file.
    """

    source: Any
    encode: Encode
    name: str
    hash: str | None
    vocab_size: int | None
    special_ids: dict[str, int]
    encode_batch: EncodeBatch | None = None
    encode_part: Encode | None = None
    encode_parts: EncodeBatch | None = None
    named_end: str | int | None = None
    may_drop: bool = False
    encoder: str | None = None
    encoder_note: str = ""
    switched_off: str = ""
    encode_chat: EncodeChat | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def identity(self) -> str:
        """Name and hash in one string, equal for equal tokenizers."""
        return self.name if self.hash is None else f"{self.name}@{self.hash}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the metadata stores."""
        return {
            "name": self.name,
            "hash": self.hash,
            "vocab_size": self.vocab_size,
            "special_ids": self.special_ids,
        }

    def token(self, name: str) -> int:
        """Return the id of a token."""
        special_ids = self.special_ids
        found = special_ids.get(name, (_vocabulary(self.source) or {}).get(name))
        if found is None:
            names = self._special_names()
            such = f", such as its special tokens {names}" if names else ""
            raise ValueError(
                f"{self.name}: has no token {name!r}; name another token{such}"
            )
        return found

    def end_of_text(self) -> tuple[int, str] | None:
        """Return the end-of-text token and its name; None if `encode` appends it."""
        if self.added_end() is not None:
            return None
        special_ids = self.special_ids
        named = self._named_end()
        known = (name for name in _ENDS_OF_TEXT if name in special_ids)
        usual = next(known, None)
        if named is not None and (usual is None or named[1] not in _ENDS_OF_TURN):
            return named
        if usual is not None:
            return special_ids[usual], usual
        if not special_ids:
            raise ValueError(
                f"{self.name}: has no special tokens, so no end-of-text token; "
                f"{_NAME_THE_END}"
            )
        raise ValueError(
            f"{self.name}: no end-of-text token is known among its special tokens "
            f"({self._special_names()}); {_NAME_THE_END}"
        )

    def ended(self, recipe: Recipe) -> Recipe:
        """Return a recipe whose separator is a token, bytes or None.

        Raises ValueError if the tokenizer does not say how its documents end.
        """
        separator = recipe.separator
        if isinstance(separator, str):
            return replace(recipe, separator=self.token(separator))
        if separator is not Separator.OF_TOKENIZER:
            return recipe
        if recipe.fields.chat and self.added_end() is not None:
            raise ValueError(
                f"{self.name}: ends each text by itself, but a chat ends as its "
                f"template says; {_NAME_THE_END}"
            )
        end = self.end_of_text()
        return replace(recipe, separator=None if end is None else end[0])

    def repeated_end(self, recipe: Recipe) -> int | None:
        """Return the separator if texts may end with it already, else None."""
        separator = recipe.separator
        if type(separator) is not int:
            return None
        # Many templates end a turn with the token that ends a text.
        is_added = recipe.fields.chat or self.added_end() == separator
        return separator if is_added else None

    def ending(self, recipe: Recipe) -> str:
        """Describe in a line how documents end; empty if the recipe alone says it."""
        if recipe.separator is not Separator.OF_TOKENIZER:
            end = self.repeated_end(self.ended(recipe))
            if end is None or recipe.fields.chat:
                return ""
            return (
                f"{self.name} ends each document with the separator ({end}) by itself; "
                "no second one follows\n"
            )
        found = self.end_of_text()
        if found is None:
            return f"{self.name} ends each document by itself; no separator follows\n"
        token, name = found
        return (
            f"each document ends with {name} ({token}), the end-of-text token of "
            f"{self.name}; --separator none leaves it out\n"
        )

    def encoding(self) -> str:
        """Describe in a line which library encodes; empty if none was chosen."""
        if self.encoder is None:
            return ""
        return f"{self.name} is encoded by {self.encoder}{self.encoder_note}\n"

    def around(self) -> tuple[list[int], list[int]]:
        """Return the tokens that `encode` adds before and after each text.

        Raises:
            ValueError: These tokens are unknown.
        """
        if self.encode_part is None:
            if encoded_ids(self.encode("")).size:
                raise ValueError(
                    f"{self.name}: its encode adds tokens to each text, and does not "
                    "say which of them stand before it; pass a tokenizer of "
                    "tokenizers, transformers or tiktoken, or one that adds none"
                )
            return [], []
        for text, whole in self._some_encoded():
            part = encoded_ids(self.encode_part(text)).tolist()
            places = [
                n
                for n in range(len(whole) - len(part) + 1)
                if whole[n : n + len(part)] == part
            ]
            if len(places) == 1:
                return whole[: places[0]], whole[places[0] + len(part) :]
        raise ValueError(
            f"{self.name}: gives texts no tokens of their own, so the tokens around a "
            "text are unknown; pass another tokenizer"
        )

    def for_parts(self) -> tuple[Tokenizer, Tokens, Tokens]:
        """Return a tokenizer that encodes the parts of a document separately.

        It adds no special tokens. Also returns the tokens that `encode` adds before and
        after each text.
        """
        before, after = (np.array(each, np.int64) for each in self.around())
        tokenizer = replace(
            self,
            encode=self.encode_part or self.encode,
            encode_batch=self.encode_parts,
        )
        return tokenizer, before, after

    def starts(self) -> list[int]:
        """Return the tokens with which makers of token files may begin a document."""
        names = (*_STARTS_OF_TEXT, *_ENDS_OF_TEXT)
        return [self.special_ids[name] for name in names if name in self.special_ids]

    def _some_encoded(self) -> Iterator[tuple[str, list[int]]]:
        for text in self._some_texts():
            # The libraries raise bare Exception for a text without tokens.
            with contextlib.suppress(Exception):
                yield text, encoded_ids(self.encode(text)).tolist()

    def _some_texts(self) -> Iterator[str]:
        yield "a"
        # A vocabulary of words may lack this letter, but has its own words.
        vocabulary = _vocabulary(self.source) or {}
        words = vocabulary.keys() - self.special_ids.keys()
        yield from sorted(words, key=vocabulary.__getitem__)[:_MAX_TRIED]

    def added_end(self) -> int | None:
        """Return the special token that `encode` puts after every text, if any."""
        ids = encoded_ids(self.encode("")).tolist()
        if not ids or ids[-1] not in self.special_ids.values():
            return None
        # With an empty text alone, the last token may be one that stands before texts.
        found = next(self._some_encoded(), None)
        return ids[-1] if found is not None and found[1][-1:] == ids[-1:] else None

    def _named_end(self) -> tuple[int, str] | None:
        named = self.named_end
        if isinstance(named, str):
            return self.token(named), named
        if named is None:
            return None
        names = {number: name for name, number in self.special_ids.items()}
        return named, names.get(named, "the token")

    def _special_names(self) -> str:
        names = list(self.special_ids)
        more = len(names) - _MAX_NAMES
        shown = ", ".join(names[:_MAX_NAMES])
        return f"{shown} and {more} more" if more > 0 else shown


def load(
    tokenizer: object, *, special_tokens: bool = False, backend: str = "tokenizers"
) -> Tokenizer:
    """Adapt a tokenizer.

    `tokenizer` is an object with `encode`, or `"bytes"`. The package `roxxel-prepare`
    loads a tokenizer by the path of a `tokenizer.json`, the path of a folder with this
    file, or a name on the Hugging Face hub. An existing path is never read as a name.
    With `special_tokens`, the text of a special token is encoded as this token.
    `backend` chooses the library that encodes for a path or a name; see
    `roxxel_prepare.tokenizers`.

    Supports the objects of `tokenizers`, `transformers` and `tiktoken`. The vocabulary
    of other objects is known if they have `get_vocab()`, `vocab_size`, `n_vocab` or
    `get_vocab_size()`.
    """
    end: object
    encoder, note = None, ""
    beside: Mapping[str, str] = {}
    is_named = isinstance(tokenizer, (str, os.PathLike))
    if tokenizer == ByteTokenizer.name and not Path(ByteTokenizer.name).exists():
        source, name, end, switched_off = ByteTokenizer(), "bytes", None, ""
    elif is_named:
        path = cast("str | os.PathLike[str]", tokenizer)
        loader = _tokenizer_loader(f"tokenizer={os.fspath(path)!r}", "tokenizers")
        found = loader.load_tokenizer(path, backend)
        source, name, end, encoder, note, switched_off, beside = found
    elif hasattr(tokenizer, "encode"):
        name = _own_name(tokenizer)
        source, switched_off = without_sampling(tokenizer)
        end = getattr(tokenizer, "eos_token_id", None)
        beside = _saved_files(tokenizer)
    else:
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__} without encode; pass an "
            "object with encode, the path of a tokenizer.json, or a name"
        )
    vocabulary = _vocabulary(source)
    definition = definition_of(source)
    files: dict[str, str] = {}
    if definition is not None and definition.startswith("{"):
        files = {**beside, TOKENIZER_FILE: definition}
    if definition is None and vocabulary is not None:
        definition = json.dumps(vocabulary, sort_keys=True, ensure_ascii=False)
    digest = None
    if definition is not None:
        digest = hashlib.blake2b(definition.encode(), digest_size=16).hexdigest()
    size, special_ids = _size(source, vocabulary), _specials(source)
    # Call last: `_encoders_of` changes settings that are part of the definition.
    encoders = _encoders_of(
        source, special_tokens=special_tokens, is_given=source is tokenizer
    )
    encode, batch, part, parts = encoders
    if not is_named:
        _check_repeats(name, lambda text: encoded_ids(encode(text)))
    named_end = end if isinstance(end, (str, int)) else None
    return Tokenizer(
        source,
        encode,
        name,
        digest,
        size,
        special_ids,
        batch,
        part,
        parts,
        named_end,
        _may_drop(source),
        encoder,
        note,
        switched_off,
        files=files,
    )


def _saved_files(tokenizer: Any) -> dict[str, str]:
    """Return the files that an object of `transformers` would save, by name."""
    save = getattr(tokenizer, "save_pretrained", None)
    if not callable(save):
        return {}
    with TemporaryDirectory(prefix="roxxel-") as folder:
        save(folder)
        paths = [Path(folder, name) for name in FILES_BESIDE]
        return {path.name: path.read_text("utf-8") for path in paths if path.is_file()}


def _tokenizer_loader(what: str, extra: str) -> Any:
    """Return the module of `roxxel_prepare` that loads tokenizers by file or name.

    It stands above this package, and need not be installed.
    """
    try:
        return importlib.import_module("roxxel_prepare.tokenizers")
    except ModuleNotFoundError as error:
        raise missing_extra(what, "roxxel-prepare", "roxxel-prepare", extra) from error


def parsed(definition: str, name: str) -> Any:
    """Return the object of a tokenizer from the content of its `tokenizer.json`.

    `name` is for messages.
    """
    loader = _tokenizer_loader("the text of this corpus", "tokenizers")
    return loader.parse_tokenizer(definition, name)


def chat_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer with `encode_chat`.

    Raises ValueError if it does not tell which characters a token stands for.
    """
    source = None if tokenizer is None else tokenizer.source
    source = getattr(source, "backend_tokenizer", source)
    if tokenizer is None or not hasattr(source, "encode_special_tokens"):
        raise ValueError(
            "chat (--chat) encodes with a tokenizer of the library tokenizers; pass a "
            "tokenizer.json, its folder, or a name on the Hugging Face hub as "
            "tokenizer (--tokenizer)"
        )
    encode = _tokenizer_loader("chat", "chat").chat_encoder(source)
    return replace(tokenizer, encode_chat=encode)


def chat_renderer(
    tokenizer: object,
    template: str | os.PathLike[str] | None,
    refused: tuple[str, ...],
) -> Chat:
    """Load the renderer of chats.

    Args:
        tokenizer: Path or name of the tokenizer; or an object, which has no template.
        template: Path of a template. Default: that of the tokenizer.
        refused: Texts that no message may contain.
    """
    name = None
    if isinstance(tokenizer, (str, os.PathLike)):
        name = cast("str | os.PathLike[str]", tokenizer)
    loaded = _tokenizer_loader("chat", "chat").load_chat(name, template, refused)
    return Chat(loaded.identity, loaded.text, loaded.render)


def _may_drop(source: Any) -> bool:
    """Return whether an object of `tokenizers` leaves out what its vocabulary lacks.

    A BPE model does so without a token for unknown characters and without a fallback to
    bytes. Other models raise an error, or have such a token.
    """
    tokenizer = getattr(source, "backend_tokenizer", source)
    model = getattr(tokenizer, "model", None)
    if type(model).__name__ != "BPE" or not hasattr(tokenizer, "decode"):
        return False
    if getattr(model, "unk_token", None) or getattr(model, "byte_fallback", False):
        return False
    return not {*BYTE_ALPHABET} <= tokenizer.get_vocab().keys()


def _own_name(tokenizer: object) -> str:
    for attribute in ("name_or_path", "name"):
        name = getattr(tokenizer, attribute, None)
        if name:
            return name if isinstance(name, str) else type(tokenizer).__name__
    return type(tokenizer).__name__


def _encoders_of(
    tokenizer: Any, *, special_tokens: bool, is_given: bool
) -> tuple[Encode, EncodeBatch | None, Encode | None, EncodeBatch | None]:
    bare: dict[str, Any] = {"add_special_tokens": False}
    if hasattr(tokenizer, "encode_special_tokens"):  # an object of `tokenizers`
        # Never change the tokenizer that the caller passed.
        ours = copy.deepcopy(tokenizer) if is_given else tokenizer
        # In `tokenizers`, True means: encode special tokens like other text.
        ours.encode_special_tokens = not special_tokens
        # A tokenizer.json may enable padding, and truncation, which would lose text.
        ours.no_truncation()
        ours.no_padding()
        # The fast method leaves out the offsets of tokens in the text.
        batch = getattr(ours, "encode_batch_fast", None)
        parts = batch and partial(batch, **bare)
        return ours.encode, batch, partial(ours.encode, **bare), parts
    if hasattr(tokenizer, "split_special_tokens"):  # an object of `transformers`
        options = {"split_special_tokens": not special_tokens}
        encode = partial(tokenizer.encode, **options)
        return encode, None, partial(encode, **bare), None
    if hasattr(tokenizer, "encode_ordinary"):  # an object of `tiktoken`
        encode = tokenizer.encode_ordinary
        if special_tokens:
            encode = partial(tokenizer.encode, allowed_special="all")
        return encode, None, encode, None
    return tokenizer.encode, None, None, None


def encoded_ids(encoded: object) -> Tokens:
    """Return the ids in the result of `encode`: ids, or an object with `ids`."""
    raw = getattr(encoded, "ids", encoded)
    ids = np.asarray(raw)
    if ids.size == 0:
        return np.empty(0, np.uint32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(
            f"the tokenizer's encode returned {type(encoded).__name__}; "
            "it must return a flat list of ids"
        )
    return ids


def definition_of(tokenizer: object) -> str | None:
    """Return the text that defines a tokenizer; None if the object does not tell."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    to_str = getattr(backend, "to_str", None)
    if not callable(to_str):
        return None
    text = to_str()
    return text if isinstance(text, str) else None


def _vocabulary(tokenizer: object) -> dict[str, int] | None:
    """Return the ids of all tokens by their text; None if unknown."""
    get_vocab = getattr(tokenizer, "get_vocab", None)
    if not callable(get_vocab):
        return None
    entries = get_vocab()
    if not isinstance(entries, dict):
        return None
    entries = cast("dict[object, int]", entries)
    return {str(text): int(number) for text, number in entries.items()}


def _size(tokenizer: object, entries: dict[str, int] | None) -> int | None:
    # Use the greatest id: ids of added tokens may exceed the nominal size.
    if entries:
        return max(entries.values()) + 1
    for name in ("n_vocab", "vocab_size"):
        size = getattr(tokenizer, name, None)
        if isinstance(size, int):
            return size
    get_size = getattr(tokenizer, "get_vocab_size", None)
    return int(cast("int", get_size())) if callable(get_size) else None


def _specials(tokenizer: object) -> dict[str, int]:
    added = getattr(tokenizer, "get_added_tokens_decoder", None)
    if callable(added):
        tokens = cast("dict[int, Any]", added())
        return {str(t.content): int(i) for i, t in tokens.items() if t.special}
    texts = getattr(tokenizer, "all_special_tokens", None)
    ids = getattr(tokenizer, "all_special_ids", None)
    if isinstance(texts, list) and isinstance(ids, list):
        pairs = zip(cast("list[object]", texts), cast("list[int]", ids), strict=False)
        return {str(text): int(number) for text, number in pairs}
    named = getattr(tokenizer, "_special_tokens", None)
    if isinstance(named, dict):
        entries = cast("dict[object, int]", named)
        return {str(text): int(number) for text, number in entries.items()}
    return {}


class ByteTokenizer:
    """Encodes a text as its UTF-8 bytes; token 256 ends a text.

    It needs no file and no library, and a corpus records it like any other tokenizer:
    `roxxel show --text` prints such a corpus, and a blend with a corpus of another
    tokenizer is noticed. A corpus of the type uint8 has no room for the end of a text
    and records no tokenizer. Its methods are those of a `tiktoken.Encoding`, with
    arrays instead of lists.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode_ordinary("to").tolist()
        [116, 111]
        >>> tokenizer.decode_bytes([116, 111, 256])
        b'to<|endoftext|>'
    """

    name = "bytes"
    n_vocab = 257

    def __init__(self) -> None:
        self._special_tokens = {END_OF_TEXT: 256}

    def encode_ordinary(self, text: str) -> npt.NDArray[Any]:
        """Return the bytes of a text, even where it spells the end-of-text token."""
        return np.frombuffer(text.encode(), np.uint8)

    def encode(self, text: str, *, allowed_special: str) -> npt.NDArray[Any]:
        """Return the bytes of a text; 256 where it spells the end-of-text token."""
        assert allowed_special == "all"  # noqa: S101 - the only call, by `load`
        first, *others = map(self.encode_ordinary, text.split(END_OF_TEXT))
        end = np.array([256], np.uint16)
        return np.concatenate([first, *(x for part in others for x in (end, part))])

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens; the name of the end-of-text token for 256."""
        end = END_OF_TEXT.encode()
        return b"".join(end if t == 256 else bytes([t]) for t in tokens)

    def to_str(self) -> str:
        """Return the definition, whose hash identifies the tokenizer."""
        return f"UTF-8 bytes as tokens 0 to 255; {END_OF_TEXT} as 256"


def without_sampling(source: Any) -> tuple[Any, str]:
    """Return a tokenizer that does not sample, and what was switched off for it.

    A tokenizer may sample how it divides a word: a BPE model by its dropout (Provilkov
    et al., *BPE-Dropout*, 2020), and a Unigram model by its alpha (Kudo, *Subword
    Regularization*, 2018). Then no write could be repeated, and a prompt would not get
    the tokens that documents got. Switching it off does not change the tokenizer's
    identity: it counts as if its file never had this.

    Args:
        source: An object of `tokenizers`, or one of `transformers` that holds one. Any
            other object stays as it is.

    Returns:
        The tokenizer, or a copy if something is switched off; and what was, such as
        `"dropout 0.1"`.

    Example:
        >>> without_sampling("another object")
        ('another object', '')
    """
    model = _model_of(source)
    if type(model).__name__ not in ("BPE", "Unigram"):
        return source, ""
    found = {name: getattr(model, name, None) for name in _RANDOM_SETTINGS}
    if all(value is None for value in found.values()):
        return source, ""
    source = copy.deepcopy(source)
    model = _model_of(source)
    for name in found:
        if hasattr(model, name):
            setattr(model, name, None)
    # A dropout of 0 samples nothing, and a number of paths is for an alpha.
    samples = [name for name in ("dropout", "alpha") if found[name]]
    return source, ", ".join(f"{name} {found[name]:g}" for name in samples)


def _check_repeats(name: str, encode: Callable[[str], Tokens]) -> None:
    """Raise ValueError if a user's tokenizer gives a text new ids in each call."""
    found: list[list[int]] = []
    # A tokenizer may refuse a text, such as one of characters that it lacks.
    with contextlib.suppress(Exception):
        found += [encode(_SAMPLE).tolist() for _ in range(_NUM_REPEATS)]
    if any(each != found[0] for each in found):
        raise ValueError(
            f"{name}: gives a text other tokens in each call, so no write could be "
            "repeated; switch off what is random in it, such as a dropout or "
            "enable_sampling"
        )


def _model_of(source: Any) -> Any:
    return getattr(getattr(source, "backend_tokenizer", source), "model", None)
