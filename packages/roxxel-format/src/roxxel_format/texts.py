"""Converts between text and the tokens of a corpus, by the corpus's own tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._spec.kept_tokenizer import (
    FILES_BESIDE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
)
from roxxel_format._write.pieces import (
    Pieces,
    no_pieces,
    of_bytes,
    of_decoder,
    same_everywhere,
)
from roxxel_format._write.tokenizers import (
    BYTE_ALPHABET,
    END_OF_TEXT,
    ByteTokenizer,
    encoded_ids,
    load,
    parsed,
    without_sampling,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roxxel_format._spec.layout import Tokens
    from roxxel_format._write.tokenizers import Tokenizer
    from roxxel_format.token_reader import TokenReader

__all__ = [
    "BYTE_ALPHABET",
    "END_OF_TEXT",
    "FILES_BESIDE",
    "TEMPLATE_FILE",
    "TOKENIZER_FILE",
    "Pieces",
    "TextCodec",
    "text_codec",
    "without_sampling",
]

_MAX_LOOKED_AT = 8
"""Number of documents whose first and last tokens are compared with the tokenizer's."""


@dataclass(frozen=True)
class TextCodec:
    """Converts text to the tokens of a corpus, and back.

    Attributes:
        encode: Returns the tokens of a text as an integer array, without special tokens
            at its ends.
        decode: Returns the text of tokens as bytes: UTF-8 with the names of special
            tokens, or the bytes themselves if the corpus holds bytes.
        files: The texts of the tokenizer's files by name, `tokenizer.json` among them.
            Empty for bytes, and for an object of another library than `tokenizers` and
            `transformers`.
        pieces: Returns the bytes of each token, if a document's text is just its
            tokens' bytes in a row, as with nearly all tokenizers; else None. Bytes that
            are no UTF-8 show as U+FFFD.

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
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    pieces: Callable[[], Pieces | None] = field(default=no_pieces, repr=False)
    _around: Callable[[], tuple[list[int], list[int]]] = field(
        default=lambda: ([], []), repr=False
    )

    @property
    def before(self) -> list[int]:
        """The tokens before the text of every document, such as `<s>`; often none.

        Put these tokens before a prompt: a model continues it like a document only if
        both begin alike.

        Raises:
            ValueError: The tokenizer does not say which tokens it puts before a text.
        """
        return self._ends[0]

    @property
    def after(self) -> list[int]:
        """The tokens that the tokenizer put after each text, before what ends it."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        # Reads documents, so only those pay who make prompts.
        return self._around()


def text_codec(
    corpus: TokenReader,
    tokenizer: object | None = None,
    *,
    special_tokens: bool | None = None,
) -> TextCodec | None:
    """Return the codec of a corpus; None if the corpus records no tokenizer.

    Args:
        corpus: The corpus. A corpus of bytes without a tokenizer holds UTF-8 text.
        tokenizer: The corpus's tokenizer, as for `Roxxel.write`. None loads the
            tokenizer that is kept with the corpus.
        special_tokens: Whether the name of a special token in a text, such as
            `<|im_start|>`, is encoded as this token and not as text. None encodes as
            the write of the corpus did: as this token only in chats, and if the write
            had `special_tokens`.

    Raises:
        OSError: The file of the tokenizer cannot be read.
        ValueError: The tokenizer is not the one that made the corpus, or the corpus
            keeps none.
        TypeError: The tokenizer cannot decode.
        ImportError: The library `tokenizers` is missing, or the tokenizer is a path or
            a name, and `roxxel-prepare` is missing.
    """
    recorded = corpus.tokenizer
    if tokenizer is not None:
        loaded = _loaded(tokenizer, corpus, special_tokens)
        if recorded not in {None, loaded.identity} and not str(recorded).endswith(
            f"@{loaded.hash}"
        ):
            given = tokenizer if isinstance(tokenizer, str) else loaded.name
            raise ValueError(
                f"{given}: is {loaded.identity}, but the corpus was tokenized "
                f"by {recorded}; pass the same tokenizer, or use --ids"
            )
        return _codec_of(loaded, corpus)
    if recorded is None:
        return _BYTES if corpus.dtype_name == "uint8" else None
    of_bytes = _loaded(ByteTokenizer(), corpus, special_tokens)
    if recorded == of_bytes.identity:
        return _codec_of(of_bytes, corpus)
    files = corpus.tokenizer_files
    if not files:
        raise ValueError(
            f"{recorded}: is not kept with the corpus, which the whole corpus of a "
            f"write with a {TOKENIZER_FILE} is; pass the tokenizer (--tokenizer)"
        )
    # Its definition is not compared: another version of the library may write the same
    # tokenizer otherwise, and the scores of a Unigram model change when it is parsed.
    kept = parsed(files[TOKENIZER_FILE], recorded)
    codec = _codec_of(_loaded(kept, corpus, special_tokens), corpus)
    return replace(codec, files=files)


def _loaded(
    tokenizer: object, corpus: TokenReader, special_tokens: bool | None
) -> Tokenizer:
    if special_tokens is None:
        special_tokens = any(map(corpus.arguments.get, ("special_tokens", "chat")))
    return load(tokenizer, special_tokens=special_tokens)


def _codec_of(loaded: Tokenizer, corpus: TokenReader) -> TextCodec:
    source: Any = loaded.source
    size = loaded.vocab_size

    def encode(text: str) -> Tokens:
        ids = encoded_ids((loaded.encode_part or loaded.encode)(text))
        return ids.astype(np.int64, copy=False)

    def around() -> tuple[list[int], list[int]]:
        return _found_around(loaded, corpus)

    if hasattr(source, "decode_bytes"):

        def decode_bytes(tokens: Tokens) -> bytes:
            return source.decode_bytes(tokens.tolist())

        pieces = cache(partial(of_bytes, source, size)) if size else no_pieces
        return TextCodec(encode, decode_bytes, {}, pieces, around)
    if getattr(source, "decode", None) is None:
        raise TypeError(f"{loaded.name}: cannot decode; use --ids")

    def decode(tokens: Tokens) -> bytes:
        # By default, the library hides special tokens, such as ends of documents.
        text = source.decode(tokens.tolist(), skip_special_tokens=False)
        return text.encode(errors="replace")

    is_of_tokenizers = hasattr(source, "encode_special_tokens")
    pieces = (
        partial(of_decoder, source, size) if is_of_tokenizers and size else no_pieces
    )
    return TextCodec(encode, decode, loaded.files, pieces, around)


def _found_around(
    tokenizer: Tokenizer, corpus: TokenReader
) -> tuple[list[int], list[int]]:
    """Return the tokens before and after the text of each document of a corpus.

    They are the tokens that the tokenizer puts around a text, unless the documents show
    others: a template renders chats, and the maker of ready-made tokens often begins
    each document with the end-of-text token.
    """
    before, after = tokenizer.around()
    every = corpus.documents
    some = map(every.__getitem__, range(min(len(every), _MAX_LOOKED_AT)))
    documents: list[list[int]] = [each.tolist() for each in some if each.size]
    if not documents:
        return before, after
    firsts = [before, *([token] for token in tokenizer.starts())]
    common = (
        first
        for first in firsts
        if first and all(each[: len(first)] == first for each in documents)
    )
    has_after = all(each[len(each) - len(after) :] == after for each in documents)
    nothing: list[int] = []
    return next(common, nothing), after if has_after else nothing


_BYTES = TextCodec(
    lambda text: np.frombuffer(text.encode(), np.uint8),
    # Integers of any width, such as those that a model has drawn.
    lambda tokens: tokens.astype(np.uint8).tobytes(),
    pieces=cache(lambda: same_everywhere([bytes([byte]) for byte in range(256)])),
)
