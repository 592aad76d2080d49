"""Converts between text and the tokens of a corpus, by the corpus's own tokenizer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from roxxel_store.client import bucket_of
from roxxel_store.urls import DEFAULT_TIMEOUT_S, located

from roxxel_format._spec.tables import as_table
from roxxel_format._write.byte_tokenizer import (
    BYTE_ALPHABET,
    END_OF_TEXT,
    ByteTokenizer,
)
from roxxel_format._write.tokenizers import definition_of, encoded_ids, load

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from roxxel_format._spec.dtypes import Tokens

__all__ = ["BYTE_ALPHABET", "END_OF_TEXT", "RecordedText", "TextCodec", "text_codec"]


@dataclass(frozen=True)
class TextCodec:
    """Converts text to the tokens of a corpus, and back.

    Attributes:
        encode: Returns the tokens of a text as an integer array, without special tokens
            at its ends.
        decode: Returns the text of tokens as bytes: UTF-8 with the names of special
            tokens, or the bytes themselves if the corpus holds bytes.
        definition: The content of the tokenizer's `tokenizer.json`; None for bytes, and
            for an object of another library than `tokenizers` and `transformers`.

    Example:
        >>> from roxxel_format import Roxxel
        >>> corpus = Roxxel("bytes.rox")
        >>> written = corpus.write([b"to be"])
        >>> codec = text_codec(corpus)
        >>> codec.encode("be").tolist(), codec.decode(corpus.tokens[:2])
        ([98, 101], b'to')
    """

    encode: Callable[[str], Tokens]
    decode: Callable[[Tokens], bytes]
    definition: str | None = None


class RecordedText(Protocol):
    """The facts about a corpus that `text_codec` uses, such as those of a `Roxxel`.

    Example:
        >>> from roxxel_format import Roxxel
        >>> corpus: RecordedText = Roxxel("bytes.rox")
    """

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer; None if unknown."""
        ...

    @property
    def dtype_name(self) -> str:
        """Name of the type of a stored token."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the first shard."""
        ...

    @property
    def paths(self) -> list[str]:
        """The shards, in order."""
        ...


def text_codec(
    corpus: RecordedText,
    tokenizer: object | None = None,
    *,
    special_tokens: bool = False,
) -> TextCodec | None:
    """Return the codec of a corpus; None if the corpus records no tokenizer.

    Args:
        corpus: The corpus. A corpus of bytes without a tokenizer holds UTF-8 text.
        tokenizer: The corpus's tokenizer, as for `Roxxel.write`. None loads the
            recorded tokenizer from the folder of the shards, the working folder, or the
            hub, in this order.
        special_tokens: Whether the name of a special token in a text, such as
            `<|im_start|>`, is encoded as this token and not as text.

    Raises:
        OSError: The file of the tokenizer cannot be read.
        ValueError: The tokenizer is not the one that made the corpus.
        TypeError: The tokenizer cannot decode.
        ImportError: The tokenizer is a path or a name, and `roxxel-prepare` or its
            extra `tokenizers` is missing.
    """
    recorded = corpus.tokenizer
    if tokenizer is not None:
        return _codec_of(tokenizer, recorded, special_tokens)
    if recorded is None:
        return _BYTES if corpus.dtype_name == "uint8" else None
    of_bytes = ByteTokenizer()
    if recorded == load(of_bytes).identity:
        return _codec_of(of_bytes, recorded, special_tokens)
    name = str(as_table(corpus.metadata.get("tokenizer")).get("name"))
    folder, slash, _ = corpus.paths[0].rpartition("/")
    beside = f"{folder}{slash}{name}"
    try:
        with _on_disk(beside) as path:
            return _codec_of(path or name, recorded, special_tokens)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name}: the corpus records this name of its tokenizer, but the file is "
            f"neither {beside} nor in the working folder; copy it beside the shards"
        ) from error


@contextlib.contextmanager
def _on_disk(file: str) -> Generator[str | None]:
    """Yield a path of a tokenizer's file, copied if it is in a bucket; None if absent.

    A name without an ending is one of the hub: no bucket is asked for it, which might
    refuse to say that the object is absent.
    """
    place = located(file)
    if isinstance(place, Path):
        yield file if place.is_file() else None
        return
    bucket, name = bucket_of(place, DEFAULT_TIMEOUT_S)
    try:
        content = bucket.read(name) if name.endswith(".json") else None
    except FileNotFoundError:
        content = None
    if content is None:
        yield None
        return
    with TemporaryDirectory(prefix="roxxel-") as folder:
        copy = Path(folder, name)
        copy.write_bytes(content)
        yield str(copy)


def _codec_of(
    tokenizer: object, recorded: str | None, special_tokens: bool
) -> TextCodec:
    loaded = load(tokenizer, special_tokens=special_tokens)
    given = tokenizer if isinstance(tokenizer, str) else loaded.name
    if recorded not in {None, loaded.identity} and not str(recorded).endswith(
        f"@{loaded.hash}"
    ):
        raise ValueError(
            f"{given}: is {loaded.identity}, but the corpus was tokenized "
            f"by {recorded}; pass the same tokenizer, or use --ids"
        )
    source: Any = loaded.source

    def encode(text: str) -> Tokens:
        ids = encoded_ids((loaded.encode_part or loaded.encode)(text))
        return ids.astype(np.int64, copy=False)

    if hasattr(source, "decode_bytes"):
        return TextCodec(encode, lambda tokens: source.decode_bytes(tokens.tolist()))
    if getattr(source, "decode", None) is None:
        raise TypeError(f"{given}: cannot decode; use --ids")

    def decode(tokens: Tokens) -> bytes:
        # By default, the library hides special tokens, such as ends of documents.
        text = source.decode(tokens.tolist(), skip_special_tokens=False)
        return text.encode(errors="replace")

    definition = definition_of(source)
    is_json = definition is not None and definition.startswith("{")
    return TextCodec(encode, decode, definition if is_json else None)


_BYTES = TextCodec(
    lambda text: np.frombuffer(text.encode(), np.uint8),
    # Integers of any width, such as those that a model has drawn.
    lambda tokens: tokens.astype(np.uint8).tobytes(),
)
