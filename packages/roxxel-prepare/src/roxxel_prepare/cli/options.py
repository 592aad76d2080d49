"""The options of write and scan, in groups.

The fields of a group are arguments of `write_files` and `scan_corpus`, under the same
names. Below the groups stand the functions that parse their values.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from roxxel_format import TokenizerBackend
from roxxel_format.writing import Exist, Separator
from roxxel_store.command import (
    UsageError,
    as_text,
    positive,
    size,
)

from roxxel_prepare._inputs.formats import FORMATS
from roxxel_prepare._run.files import checked_buckets, checked_split
from roxxel_prepare._run.runners import UNIT_BYTES, num_cores

_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\\": b"\\"}

Against = Sequence[
    Annotated[
        str,
        "EVALS",
        "a file, folder, pattern, URL or corpus of evaluation sets; every text in "
        "every field is searched; repeatable",
    ]
]
_Workers = Annotated[
    int | None,
    positive,
    "N",
    "run units in N processes (default: one for each 64 MiB, and at most one for each "
    f"usable core, {num_cores()} here)",
]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """What of the inputs is a document.

    Attributes:
        field: Field of JSON objects, or column of a table, that holds the documents
            (default: text, and messages with --chat).
        prompt: Field of prompts; with --completion. A document is a prompt and its
            completion, and the column loss_mask is 0 on the prompt.
        completion: Field of completions; with --prompt.
        chat: Documents are chats: lists of messages in the field messages, or in
            --field. The template in this file renders them, or with auto the chat
            template of --tokenizer, and the column loss_mask is 1 on what the assistant
            says (default: documents are no chats).
        document_id: Field of ids; documents keep them in a column id.
        path: Keep the path of each document's file in a column path, relative to the
            folder of all inputs.
        without_columns: Columns of the corpus for which an append brings no values, so
            that they cannot be read until Roxxel(...).write_column writes them
            (default: an error).
        skip_bad: Leave out damaged documents, and damaged files from the damage on, and
            list them (default: an error).
        shuffle: Shuffle the units, and the documents in each; not a global shuffle.

    Example:
        >>> Documents(prompt="question", completion="answer").field is None
        True
    """

    format: Annotated[
        str | None,
        _as_format,
        "FORMAT",
        f"one of {', '.join(FORMATS)} (default: that of each file's name, which its "
        "first bytes must confirm)",
    ] = None
    field: Annotated[str | None, as_text] = None
    prompt: Annotated[str | None, as_text, "FIELD"] = None
    completion: Annotated[str | None, as_text, "FIELD"] = None
    chat: Annotated[str | bool, _as_template, "TEMPLATE"] = False
    document_id: Annotated[str | None, as_text, "FIELD"] = None
    path: bool = False
    without_columns: Annotated[Sequence[str], _as_names, "NAME,NAME,..."] = ()
    skip_bad: bool = False
    shuffle: Annotated[int | None, "SEED"] = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    r"""How a document becomes tokens.

    Attributes:
        tokenizer: The file tokenizer.json, its folder, a Hugging Face name, or bytes:
            the UTF-8 bytes of a text, then token 256 (default: the bytes alone, with
            nothing that ends a document). The corpus keeps it.
        tokenizer_backend: What encodes, with the same ids (default: auto, which is
            fastokens where the extra fast is installed and it can encode with this
            tokenizer).
        special_tokens: Encode names of special tokens in texts as special tokens.
        separator: A token id, a token's name, none, or text: and a text with the
            escapes \n, \t, \r, \\ and \xNN, such as 'text:\n\n' (default: the
            end-of-text token of --tokenizer).
        dtype: Type of a token on the disk (default: uint16 or uint32, whichever holds
            the vocabulary, and uint8 for bytes).
        vocab_size: Every token must be below N, which chooses the dtype too (default:
            as the tokenizer says, or what the dtype holds).

    Example:
        >>> Tokens(tokenizer="bytes").special_tokens
        False
    """

    tokenizer: Annotated[str | None, "PATH"] = None
    tokenizer_backend: TokenizerBackend = "auto"
    special_tokens: bool = False
    separator: Annotated[
        int | str | bytes | Separator | None, _as_separator, "TOKEN"
    ] = Separator.OF_TOKENIZER
    dtype: Annotated[str | None, "DTYPE"] = None
    vocab_size: Annotated[int | None, positive, "N"] = None

    @property
    def missing_end(self) -> str:
        """What to say if they leave open what ends a document; empty if they do not."""
        if self.tokenizer or self.separator is not Separator.OF_TOKENIZER:
            return ""
        return (
            "nothing marks where a document ends, because neither --tokenizer nor "
            "--separator was passed; write text with --tokenizer bytes, which ends "
            "each document with token 256, or pass --separator: a token, or none if "
            "this is what you want\n"
        )

    def __post_init__(self) -> None:
        if self.tokenizer is None and isinstance(self.separator, str):
            raise UsageError(
                f"argument --separator: {self.separator!r} is not a token id; write a "
                f"number, text:{self.separator} for this text, or pass the --tokenizer "
                "that has this token"
            )


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Which corpora are written, in which shards.

    Attributes:
        exist: If the corpus exists: keep it if the same command wrote it, replace it,
            append a new version, or stop.
        split: Hold out this share of the documents, chosen by their content, in a
            second corpus: valid=0.001 holds out wiki_valid_*.rox of wiki_*.rox.
        max_shard_bytes: Largest size of a shard, such as 1G; a larger document has a
            shard of its own (default: no limit).
        pack: Put documents whole into bins of T tokens, so that sequences of T tokens
            cut none but those that are longer (default: documents stay in their order).
        bucket_by_length: Write a packed corpus for each of these lengths: 513,4097
            writes wiki_513_*.rox of wiki_*.rox with the documents of up to 513 tokens,
            and wiki_4097_*.rox with all longer ones.

    Example:
        >>> Shards(split=("valid", 0.001)).exist
        'keep'
    """

    exist: Exist = "keep"
    split: Annotated[tuple[str, float] | None, _as_split, "NAME=SHARE"] = None
    max_shard_bytes: Annotated[int | None, size, "BYTES"] = None
    pack: Annotated[int | None, positive, "T"] = None
    bucket_by_length: Annotated[Sequence[int] | None, _as_lengths, "T,T,..."] = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """Who does the units of a job, as arguments of `write_files` and `scan_corpus`.

    Attributes:
        ray: Run units as tasks of a Ray cluster, which ADDRESS names as for ray.init:
            auto is RAY_ADDRESS or the cluster of this machine, local a new one.
        part: Do the share of member I (from 0) of N; the command says what to type
            when all are done.
        unit_bytes: Minimum size of the inputs of a unit (default: 64M).

    Example:
        >>> Work(part=(0, 8)).part
        (0, 8)
    """

    workers: _Workers = None
    ray: Annotated[str | None, "ADDRESS"] = None
    part: Annotated[tuple[int, int] | None, as_part, "I/N"] = None
    unit_bytes: Annotated[int, size, "BYTES"] = UNIT_BYTES


def as_part(text: str) -> tuple[int, int]:
    """Parse the part `I/N`, with I from 0."""
    first, _, count = text.partition("/")
    if first.isdecimal() and count.isdecimal() and int(first) < int(count):
        return int(first), int(count)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a part I/N with I from 0 to N - 1, such as 0/8"
    )


def _as_lengths(text: str) -> list[int]:
    """Parse lengths `513,1025,4097`, which ascend."""
    parts = [each.strip() for each in text.split(",")]
    if all(each.isdecimal() for each in parts):
        with contextlib.suppress(ValueError):
            return checked_buckets([int(each) for each in parts])
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a list of lengths that ascend, such as 513,1025,4097"
    )


def _as_names(text: str) -> list[str]:
    return [each.strip() for each in as_text(text).split(",") if each.strip()]


def _as_split(text: str) -> tuple[str, float]:
    """Parse a split `NAME=SHARE`, such as `valid=0.001`."""
    name, _, number = as_text(text).partition("=")
    with contextlib.suppress(ValueError):
        return checked_split((name, number))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not NAME=SHARE with a share between 0 and 1, such as valid=0.001"
    )


def _as_format(text: str) -> str:
    if text in FORMATS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(FORMATS)}")


def _as_template(text: str) -> str | bool:
    """Parse the path of a chat template; True is `auto`."""
    return True if text == "auto" else text


def _as_separator(text: str) -> int | str | bytes | None:
    """Parse a token id, the name of a token, `none`, or `text:` and a text."""
    start, is_text, spelled = text.partition("text:")
    return _byte_string(spelled) if is_text and not start else Separator.parse(text)


def _byte_string(text: str) -> bytes:
    r"""Parse a text with the escapes \n, \t, \r, \\ and \xNN."""
    if not text:
        raise argparse.ArgumentTypeError(
            "text: without a text separates nothing; write none, or a text behind it"
        )
    # Text and escapes in turn. An escape without a meaning is split off too, so that
    # it is an error: `\q`, `\x` without two digits, or a backslash at the end.
    parts = re.split(r"(\\x[0-9a-fA-F]{2}|\\.|\\)", text)
    result = b""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            result += os.fsencode(part)  # As typed: a separator need not be UTF-8.
        elif part.startswith("\\x") and len(part) == 4:
            result += bytes.fromhex(part[2:])
        elif part in _ESCAPES:
            result += _ESCAPES[part]
        else:
            raise argparse.ArgumentTypeError(
                rf"text:{text} holds {part}; write \n, \t, \r, \\ or \xNN"
            )
    return result
