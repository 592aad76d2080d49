"""Decode tokens to text, with the tokenizer that a corpus records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format._spec.metadata import as_table
from roxxel_format._write.tokenizers import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format.corpus import Roxxel


def decoder(corpus: Roxxel, tokenizer: str | None) -> Callable[[Tokens], bytes] | None:
    """Return the function that decodes tokens of a corpus to UTF-8 text.

    Args:
        corpus: The corpus; its metadata name the tokenizer.
        tokenizer: Path or name of the tokenizer. Default: the recorded one, searched
            beside the shards, in the working folder, and on the hub.

    Returns:
        The function; None for tokens that are not text.

    Raises:
        OSError: The tokenizer's file does not exist.
        ModuleNotFoundError: The package `tokenizers` is not installed.
        TypeError: The tokenizer cannot decode.
        ValueError: The tokenizer is not the recorded one.
    """
    recorded = corpus.tokenizer
    if tokenizer is None:
        if recorded is None:
            return _as_bytes if corpus.dtype_name == "uint8" else None
        name = str(as_table(corpus.metadata.get("tokenizer")).get("name"))
        beside = Path(corpus.paths[0]).parent / name
        tokenizer = str(beside) if beside.is_file() else name
    return _decoder_of(tokenizer, recorded)


def _decoder_of(tokenizer: str, recorded: str | None) -> Callable[[Tokens], bytes]:
    loaded, info = load(tokenizer)
    if recorded not in {None, info.identity} and not str(recorded).endswith(
        f"@{info.hash}"
    ):
        raise ValueError(
            f"{tokenizer}: is {info.identity}, but the corpus was made by {recorded}; "
            "pass that tokenizer, or use --ids"
        )
    decode = getattr(loaded, "decode", None)
    if decode is None:
        raise TypeError(f"{tokenizer}: cannot decode; use --ids")

    def decoded(tokens: Tokens) -> bytes:
        text: str = decode(tokens.tolist())
        return text.encode(errors="replace")

    return decoded


def _as_bytes(tokens: Tokens) -> bytes:
    return tokens.tobytes()
