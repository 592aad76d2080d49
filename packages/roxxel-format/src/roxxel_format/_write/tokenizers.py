"""Load tokenizers, and describe them: vocabulary size, name, hash and special ids."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_format._spec.dtypes import Tokens


@runtime_checkable
class Tokenizer(Protocol):
    """An object with `encode`, which returns ids or an object with `ids`."""

    def encode(self, text: str, /) -> Any:
        """Return the ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A tokenizer as a corpus records it.

    Attributes:
        name: A name for people; the name of the class if the tokenizer has none.
        hash: Digest of the definition or the vocabulary; None if neither is known.
        vocab_size: Number of ids, None if unknown.
        special_ids: Ids of special tokens, by their text.
    """

    name: str
    hash: str | None
    vocab_size: int | None
    special_ids: Mapping[str, int]

    @property
    def identity(self) -> str:
        """Name and hash in one string, equal for equal tokenizers."""
        return self.name if self.hash is None else f"{self.name}@{self.hash}"

    def to_dict(self) -> dict[str, Any]:
        """Return the description as the metadata stores it."""
        return {
            "name": self.name,
            "hash": self.hash,
            "vocab_size": self.vocab_size,
            "special_ids": dict(self.special_ids),
        }


def load(tokenizer: object) -> tuple[Tokenizer, TokenizerInfo]:
    """Return a tokenizer and its description.

    Args:
        tokenizer: An object with `encode`; or the path of a `tokenizer.json`; or a
            name on the Hugging Face hub. The last two need the package `tokenizers`.

    Raises:
        FileNotFoundError: The file is missing.
        ModuleNotFoundError: `tokenizers` is not installed.
        TypeError: The object cannot encode.
        ValueError: The file or name cannot be loaded as a tokenizer.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        return _load_named(os.fspath(cast("str | os.PathLike[str]", tokenizer)))
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__} without encode; pass an "
            "object that has it, the path of a tokenizer.json, or a name"
        )
    return tokenizer, describe(tokenizer)


def _load_named(name: str) -> tuple[Tokenizer, TokenizerInfo]:
    try:
        library: Any = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"tokenizer={name!r} needs the package tokenizers: "
            'pip install "roxxel-format[tokenizers]"',
            name="tokenizers",
        ) from error
    path = Path(name)
    if not path.exists() and path.suffix == ".json":
        raise FileNotFoundError(f"{name}: no such tokenizer file; check the path")
    try:
        if path.is_file():
            loaded = library.Tokenizer.from_file(name)
        else:
            loaded = library.Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare Exception
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{name}: cannot be loaded as a tokenizer ({reason}); pass the path of a "
            "tokenizer.json or a name on the Hugging Face hub"
        ) from error
    return loaded, describe(loaded, path.name if path.is_file() else name)


def describe(tokenizer: object, name: str | None = None) -> TokenizerInfo:
    """Describe a tokenizer without encoding anything.

    Understands the objects of `tokenizers`, `transformers`, `tiktoken` and whatever
    has `get_vocab()`, `vocab_size`, `n_vocab` or `get_vocab_size()`.

    Args:
        tokenizer: The object that encodes.
        name: Name to record. Default: the object's own, or that of its class.
    """
    vocabulary = _vocabulary(tokenizer)
    definition = _definition(tokenizer)
    if definition is None and vocabulary is not None:
        definition = json.dumps(vocabulary, sort_keys=True, ensure_ascii=False)
    digest = None
    if definition is not None:
        digest = hashlib.blake2b(definition.encode(), digest_size=16).hexdigest()
    own_name = getattr(tokenizer, "name_or_path", None) or getattr(
        tokenizer, "name", None
    )
    if not isinstance(own_name, str) or not own_name:
        own_name = type(tokenizer).__name__
    return TokenizerInfo(
        name or own_name, digest, _size(tokenizer, vocabulary), _specials(tokenizer)
    )


def encoded_ids(encoded: object) -> Tokens:
    """Return the ids in the result of `encode`: ids, or an object with `ids`.

    Raises:
        TypeError: The result is not a flat list of integers.
    """
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


def _definition(tokenizer: object) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    to_str = getattr(backend, "to_str", None)
    if not callable(to_str):
        return None
    text = to_str()
    return text if isinstance(text, str) else None


def _vocabulary(tokenizer: object) -> dict[str, int] | None:
    get_vocab = getattr(tokenizer, "get_vocab", None)
    if not callable(get_vocab):
        return None
    vocabulary = get_vocab()
    if not isinstance(vocabulary, dict):
        return None
    entries = cast("dict[object, int]", vocabulary)
    return {str(text): int(number) for text, number in entries.items()}


def _size(tokenizer: object, vocabulary: dict[str, int] | None) -> int | None:
    # The greatest id counts: added tokens may lie beyond the nominal size.
    if vocabulary:
        return max(vocabulary.values()) + 1
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
