"""The sources of a curriculum: named readers with policies, and whether they fit.

A blend of corpora of different tokenizers trains without an error, on nonsense. What is
certain is an error: two recorded tokenizers that differ, or bytes blended with larger
ids. What is only likely is a note, such as a corpus that records no tokenizer. A
curriculum can declare a tokenizer, which decides both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from operator import index as as_index
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from roxxel_format import Roxxel, ShardError, TokenReader
from roxxel_store import roxxel_command
from roxxel_store.screen import counted

from roxxel_curriculum._arguments import DROP, REPEAT, as_policy, of_sources
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from roxxel_curriculum._arguments import Policy

MAX_TOKENS = 2**60
"""Largest number of tokens of a source: sums of token positions must fit 64 bits."""

_INT32 = np.iinfo(np.int32)
_BYTES = "bytes"
_LARGEST_OF_BYTES = 256
"""The separator of the tokenizer `"bytes"`; the ids of bytes are smaller."""


def checked_sources(
    primary: TokenReader,
    mix: Mapping[str, TokenReader] | None,
    policies: Mapping[str, Policy | str | int],
    primary_name: str,
    tokenizers: Mapping[str, str],
) -> tuple[Source, ...]:
    """Return the sources with their policies, the primary first, at fixed versions."""
    mix = {} if mix is None else mix
    if not isinstance(cast("Any", mix), Mapping):
        raise TypeError(
            f"mix_streamers must map names to token readers, got {type(mix).__name__}"
        )
    if PRIMARY in mix:
        raise CurriculumError(
            f"mix_streamers has a source named {PRIMARY!r}, which names the primary; "
            "give it another name"
        )
    for name in mix:
        if not isinstance(cast("Any", name), str) or not name:
            raise TypeError(f"a source's name must be a non-empty str, got {name!r}")
    if primary_name in mix:
        raise CurriculumError(
            f"primary={primary_name!r} is also the name of a source in mix_streamers; "
            "give the primary another name"
        )
    names = [primary_name, *mix]
    policies = of_sources(policies, names, "policies")
    declared = of_sources(tokenizers, names, "tokenizers")
    sources: list[Source] = []
    for name, reader, default, order in (
        (primary_name, primary, REPEAT, PRIMARY),
        *((name, reader, DROP, name) for name, reader in mix.items()),
    ):
        policy = as_policy(policies.get(name, default))
        source = opened(name, reader, policy, order)
        sources.append(replace(source, declared=declared.get(name)))
        _check_same_kind(sources[0], source)
    return tuple(sources)


def opened(name: str, reader: TokenReader, policy: Policy, order_name: str) -> Source:
    """Return a source at the reader's current version; later writes have no effect.

    Raises:
        CurriculumError: No batch can be read from it.
        TypeError: It is no token reader.
    """
    if not isinstance(cast("Any", reader), TokenReader):
        raise TypeError(
            f"source {name!r} is a {type(reader).__name__}, which is no "
            "roxxel_format.TokenReader; open a corpus with Roxxel(filepath), or begin "
            "a reader of your own with `class NAME(TokenReader):`"
        )
    reader = reader.with_version(reader.fingerprint)
    source = Source(name, reader, policy, order_name, **_facts(reader))
    _check_readable(source)
    return source


def _facts(reader: TokenReader) -> dict[str, Any]:
    """Return what a source says of its reader. Nothing else asks the reader for it."""
    return {
        "num_tokens": as_index(reader.num_tokens),
        "dtype": np.dtype(reader.dtype),
        "fingerprint": reader.fingerprint,
        "tokenizer": reader.tokenizer,
        "token_range": reader.token_range_seen,
        "unit": reader.unit or 1,
        "num_padding": reader.num_padding,
        "path": reader.filepath if isinstance(reader, Roxxel) else None,
        "has_mask": "loss_mask" in reader.columns,
    }


def with_block_checks(source: Source) -> TokenReader:
    """Return a reader that verifies the checksum of every block it reads."""
    try:
        return source.reader.with_check("blocks")
    except ValueError as error:
        raise CurriculumError(
            f'check="blocks": source {source.name!r} cannot be checked: {error}'
        ) from error


def mask_column(name: str, reader: TokenReader) -> Any | None:
    """Return the column `loss_mask` of a source, with an integer for each token.

    Raises ShardError if a shard lacks the column: else the run would learn all its
    tokens.
    """
    if "loss_mask" not in (*reader.columns, *reader.partial_columns):
        return None
    column = reader.column("loss_mask")
    if column.per != "token" or column.dtype.kind not in "biu":
        raise CurriculumError(
            f"the column 'loss_mask' of source {name!r} has {column.dtype} per "
            f"{column.per}; write an integer, 0 or 1, for each token"
        )
    return column


def at_versions(
    sources: Sequence[Source], fingerprints: Mapping[str, str]
) -> tuple[Source, ...]:
    """Return the sources, each at the version that `fingerprints` gives by name.

    A source without the version stays as it is. A comparison then reports it.
    """
    found: list[Source] = []
    for source in sources:
        reader = source.reader
        with suppress(ShardError):
            reader = at_version(reader, fingerprints.get(source.name))
        is_same = reader is source.reader
        other = source if is_same else replace(source, reader=reader, **_facts(reader))
        found.append(other)
    return tuple(found)


def at_version(reader: TokenReader, fingerprint: str | None) -> TokenReader:
    """Return a reader at a version; at its own for None.

    Raises:
        ShardError: The reader lacks the version.
    """
    if fingerprint in {None, reader.fingerprint}:
        return reader  # Another copy would open its files again.
    return reader.with_version(cast("str", fingerprint))


def compare_ids(*labelled: tuple[str, Iterable[Source]]) -> tuple[str, ...]:
    """Compare corpora with the first of a known tokenizer; return a note per doubt.

    If no tokenizer is known, they are compared with the first corpus.

    Each argument is some sources, after what messages call each of them.

    Raises:
        CurriculumError: The ids of two corpora certainly mean different text.
    """
    vocabularies = [
        _Vocabulary(f"{label} {source.name!r}", source)
        for label, sources in labelled
        for source in sources
    ]
    known = [each for each in vocabularies if each.tokenizer is not None]
    reference = (known or vocabularies)[0]
    others = [each for each in vocabularies if each is not reference]
    for other in others:
        _check_tokenizers(reference, other)
    # An error names the first that holds bytes, and the first that does not.
    _check_bytes([reference, *others])
    return tuple(_doubts(reference, others))


def notes_on_held_out(
    training: Sequence[Source], held_out: Sequence[Source], label: str
) -> Iterator[str]:
    """Yield a sentence for each held-out source that is trained on.

    `label` names the set, and precedes the name of a source.
    """
    for source in held_out:
        for trained in training:
            shares = _what_it_shares(trained.reader, source.reader)
            if shares:
                yield (
                    f"{label} {source.name!r} {shares} source {trained.name!r}, so its "
                    "loss says nothing about text that the model has not seen; hold "
                    f"documents out with `{roxxel_command('prepare write --split')}`"
                )


def _check_readable(source: Source) -> None:
    if not 0 < source.num_tokens <= MAX_TOKENS:
        raise CurriculumError(
            f"source {source.name!r} holds {source.num_tokens} tokens; "
            "a source needs at least 1 and at most 2**60"
        )
    dtype = source.dtype
    if dtype.kind in "iu" and not np.can_cast(dtype, np.int32, "safe"):
        _check_int32(source.name, dtype, source.token_range)


def _check_int32(name: str, dtype: np.dtype[Any], seen: tuple[int, int] | None) -> None:
    least, greatest = (0, 0) if seen is None else seen
    if greatest > _INT32.max or least < _INT32.min:
        raise CurriculumError(
            f"source {name!r} holds {dtype.name} tokens from {least} to {greatest}, "
            f"but a batch is int32 and holds tokens from {_INT32.min} to {_INT32.max}; "
            "write the source again with a vocabulary that fits"
        )


def _check_same_kind(primary: Source, source: Source) -> None:
    first, other = primary.dtype, source.dtype
    if _kind(first) != _kind(other):
        raise CurriculumError(
            f"source {source.name!r} holds {_kind(other)} tokens ({other.name}) but "
            f"the primary holds {_kind(first)} tokens ({first.name}); "
            "a batch has one kind, so write this source again with the primary's dtype"
        )


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "iu":
        return "integer"
    return {"f": "floating-point", "b": "boolean"}.get(dtype.kind, dtype.name)


class _Vocabulary(NamedTuple):
    """The ids of a source, and what messages call it, such as `source 'web'`."""

    label: str
    source: Source

    @property
    def tokenizer(self) -> str | None:
        """The declared, else the recorded tokenizer; None if neither is known."""
        return self.source.declared or self.source.tokenizer

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored tokens."""
        return self.source.dtype

    @property
    def greatest(self) -> int | None:
        """Largest token; None if the reader does not record it."""
        return None if self.source.token_range is None else self.source.token_range[1]

    @property
    def holds_bytes(self) -> bool:
        """Whether the ids are bytes, by their tokenizer or by their type."""
        if self.tokenizer is not None:
            return self.tokenizer.partition("@")[0] == _BYTES
        return self.dtype == np.uint8

    @property
    def holds_no_bytes(self) -> bool:
        """Whether the ids are certainly not bytes."""
        if self.tokenizer is not None:
            return not self.holds_bytes
        return self.greatest is not None and self.greatest > _LARGEST_OF_BYTES

    def __str__(self) -> str:
        """Return the label, with what is known about the ids."""
        if self.tokenizer is not None:
            return f"{self.label} (tokenizer {self.tokenizer!r})"
        size = "" if self.greatest is None else f" up to {self.greatest}"
        return f"{self.label} ({self.dtype.name} tokens{size}, no tokenizer recorded)"


def _check_tokenizers(first: _Vocabulary, second: _Vocabulary) -> None:
    """Raise an error if two corpora record different tokenizers."""
    tokenizers = {first.tokenizer, second.tokenizer}
    if None not in tokenizers and len(tokenizers) > 1:
        raise CurriculumError(
            f"{second.label} was made with tokenizer {second.tokenizer!r} but "
            f"{first.label} with {first.tokenizer!r}; the same token id would mean "
            "different text, so write one of them again with the other's tokenizer"
        )


def _check_bytes(vocabularies: Sequence[_Vocabulary]) -> None:
    """Raise an error if a corpus holds bytes and another certainly does not."""
    one = next((each for each in vocabularies if each.holds_bytes), None)
    other = next((each for each in vocabularies if each.holds_no_bytes), None)
    if one is not None and other is not None:
        raise CurriculumError(
            f"{one} holds bytes and {other} does not: the same token id would mean "
            "different text; write both with one tokenizer, or, if the ids do mean "
            f"the same, {_declared(one, other)}"
        )


def _doubts(reference: _Vocabulary, others: Iterable[_Vocabulary]) -> Iterator[str]:
    for other in others:
        if other.tokenizer is not None or (reference.holds_bytes and other.holds_bytes):
            continue
        if reference.tokenizer is not None:
            yield (
                f"{other} may have other ids than {reference}: if both are of one "
                f"tokenizer, {_declared(other, reference)}"
            )
        elif other.dtype != reference.dtype and other.dtype.kind in "iu":
            yield (
                f"{other} and {reference} may have ids of two tokenizers, because "
                f"their types differ: if not, {_declared(other, reference)}"
            )


def _declared(one: _Vocabulary, other: _Vocabulary) -> str:
    """Return how to declare that the ids of two corpora mean the same."""
    if other.tokenizer is not None:
        return f"declare tokenizers={{{one.source.name!r}: {other.tokenizer!r}}}"
    return (
        f"declare one name for both, such as tokenizers={{"
        f"{one.source.name!r}: 'NAME', {other.source.name!r}: 'NAME'}}"
    )


def _what_it_shares(training: TokenReader, held_out: TokenReader) -> str:
    """Return the words between the names of both corpora; none if they share nothing.

    The name of the held-out corpus stands before the words.
    """
    if {*training.versions} & {*held_out.versions}:
        return "is the training corpus of"
    trained, digests = {*training.shard_digests}, held_out.shard_digests
    number = sum(digest in trained for digest in digests)
    if not number:
        return ""
    shards = counted(len(digests), "shard")
    return f"shares {number} of its {shards} with the training corpus of"
