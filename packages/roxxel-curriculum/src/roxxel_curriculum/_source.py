"""What a curriculum draws from: named readers, checked to belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel, TokenReader

from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._policy import Policy

MAX_TOKENS = 2**60
"""The largest source: positions and their sums stay inside 64 bits."""

_MEMBERS = [member for member in dir(TokenReader) if not member.startswith("_")]


@dataclass(frozen=True)
class Source:
    """A reader under its name, with what to do when it runs out."""

    name: str
    reader: TokenReader
    policy: Policy


def check_sources(sources: Sequence[Source]) -> None:
    """Check that every source holds tokens of the primary's kind and tokenizer.

    Raises:
        TypeError: A source is not a reader.
        CurriculumError: A source is empty, too large, or of another kind or tokenizer.
        ShardError: The shards of a source were written with different tokenizers.
    """
    primary = sources[0]
    for source in sources:
        reader = source.reader
        # Of the type first: asking the reader itself would work out its fingerprint.
        missing = [
            member
            for member in _MEMBERS
            if not (hasattr(type(reader), member) or hasattr(reader, member))
        ]
        if missing:
            raise TypeError(
                f"source {source.name!r} is a {type(reader).__name__} and no token "
                f"reader, for it has no {', '.join(missing)}; "
                "open the corpus with Roxxel(filepath)"
            )
        if not 0 < reader.num_tokens <= MAX_TOKENS:
            raise CurriculumError(
                f"source {source.name!r} holds {reader.num_tokens} tokens; "
                "a source needs at least 1 and at most 2**60"
            )
        if source is not primary:
            _check_alike(primary, source)
        elif len(sources) == 1 and not _is_one_shard(reader):
            _ = reader.tokenizer  # an error where its shards disagree


def checking_reader(source: Source) -> TokenReader:
    """Return a reader of the same tokens that compares each block with its checksum.

    Raises:
        CurriculumError: The source has no checksums.
    """
    if not isinstance(source.reader, Roxxel):
        raise CurriculumError(
            f'check="blocks": source {source.name!r} is a '
            f"{type(source.reader).__name__}, which has no checksums; "
            "write it as .rox shards to have it checked"
        )
    return source.reader.with_check("blocks")


def batch_dtype(readers: Sequence[TokenReader]) -> np.dtype[Any]:
    """Return the type of a batch: int32 for integer tokens, else as stored."""
    dtypes = [np.dtype(reader.dtype) for reader in readers]
    if dtypes[0].kind in "iu":
        return np.dtype(np.int32)
    return np.result_type(*dtypes)


def _is_one_shard(reader: TokenReader) -> bool:
    return isinstance(reader, Roxxel) and reader.num_shards == 1


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu":
        return "integer"
    return {"f": "floating-point", "b": "boolean"}.get(dtype.kind, dtype.name)


def _check_alike(primary: Source, source: Source) -> None:
    first, other = np.dtype(primary.reader.dtype), np.dtype(source.reader.dtype)
    if _kind(first) != _kind(other):
        raise CurriculumError(
            f"source {source.name!r} holds {_kind(other)} tokens ({other.name}) but "
            f"the primary holds {_kind(first)} ones ({first.name}); "
            "a batch has one kind, so write this source again with the primary's"
        )
    ours, theirs = primary.reader.tokenizer, source.reader.tokenizer
    if ours is not None and theirs is not None and ours != theirs:
        raise CurriculumError(
            f"source {source.name!r} was made with tokenizer {theirs!r} but the "
            f"primary with {ours!r}; the same number would mean different text, "
            "so write this source again with the primary's tokenizer"
        )
