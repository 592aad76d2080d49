"""The arguments of a write: their checks, and which of them a corpus records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, cast

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import check_block_size
from roxxel_format._store.corpus_name import corpus_name
from roxxel_format._write import tokenizers
from roxxel_format._write.intake import Intake, separator_items
from roxxel_format._write.shard_writer import shard_size_bound

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._store.corpus_name import CorpusName

Exist = Literal["keep", "replace", "append", "error"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The arguments of a write; see `Roxxel.write`.

    `inputs` is a digest that identifies the documents, None if that is not known before
    they are read.
    """

    separator: float | bytes | None = None
    block_size: int = 4096
    max_shard_bytes: int | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    tokenizer: object | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: str | None = None

    def recorded(self, info: tokenizers.TokenizerInfo | None) -> dict[str, Any]:
        """Return the arguments that determine the content of the shards, for JSON."""
        separator: Any = self.separator
        if isinstance(separator, bytes):
            separator = {"bytes": separator.hex()}
        elif separator is not None:
            separator = getattr(separator, "item", lambda: self.separator)()
        recorded = {
            "separator": separator,
            "block_size": self.block_size,
            "max_shard_bytes": self.max_shard_bytes,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": info.identity if info else None,
        }
        return recorded if self.inputs is None else recorded | {"inputs": self.inputs}

    def intake(self) -> Intake:
        """Return an intake for documents of this write.

        Raises:
            ModuleNotFoundError: The tokenizer needs a package that is not installed.
            OSError: The tokenizer's file cannot be read.
            TypeError: The tokenizer cannot encode.
            ValueError: `vocab_size` is out of range, or the tokenizer is unknown.
        """
        if self.tokenizer is None:
            return Intake(self.dtype, self.vocab_size)
        return Intake(self.dtype, self.vocab_size, *tokenizers.load(self.tokenizer))


def parse_options(
    *,
    separator: float | bytes | None,
    block_size: int,
    max_shard_bytes: int | None,
    dtype: npt.DTypeLike | None,
    vocab_size: int | None,
    tokenizer: object | None,
    metadata: Mapping[str, Any] | None,
) -> WriteOptions:
    """Return the arguments of `Roxxel.write`, converted to the types that are stored.

    Raises:
        TypeError: A number is not an integer, or a shard cannot hold the dtype.
    """
    return WriteOptions(
        separator=separator,
        block_size=_integer("block_size", block_size),
        max_shard_bytes=_integer_or_none("max_shard_bytes", max_shard_bytes),
        dtype=None if dtype is None else dtypes.stored_name(dtype),
        vocab_size=_integer_or_none("vocab_size", vocab_size),
        tokenizer=tokenizer,
        metadata=dict(metadata or {}),
    )


def name_to_write(filepath: str | tuple[str, ...]) -> CorpusName:
    """Return the file names of the corpus to write.

    Raises:
        TypeError: The path is a list.
        ValueError: The path names several corpora, or is not UTF-8.
    """
    if isinstance(filepath, tuple):
        raise TypeError(
            f"a list of {len(filepath)} paths cannot be written to; "
            'use a file, a folder, or a pattern such as "wiki_*.rox"'
        )
    name = corpus_name(filepath)
    try:
        (name.prefix + name.suffix).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name.pattern!r}: the manifest cannot list names that are not UTF-8; use "
            "other names, or a locale such as LC_ALL=C.UTF-8"
        ) from error
    return name


def check_arguments(
    options: WriteOptions, name: CorpusName, exist: str, data: object
) -> None:
    """Check the arguments of a write, before any file is touched.

    Raises:
        TypeError: `data` is one document, or the separator is of a wrong type.
        ValueError: An argument is out of range.
    """
    if exist not in ("keep", "replace", "append", "error"):
        raise ValueError(
            f'exist must be "keep", "replace", "append" or "error", got {exist!r}'
        )
    if isinstance(data, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", data)).__name__
        raise TypeError(
            f"data is one {kind}; pass an iterable of documents, such as a list with it"
        )
    check_block_size(options.block_size)
    limit = options.max_shard_bytes
    if limit is not None:
        least = shard_size_bound(8, options.block_size) + 2 * options.block_size
        if limit < least:
            raise ValueError(
                f"max_shard_bytes={limit} is too small for one document; use at "
                f"least {least}"
            )
    if name.manifest is None and (limit is not None or exist == "append"):
        raise ValueError(
            f"{name.single}: one file holds one shard; for max_shard_bytes or "
            f'exist="append" use a pattern such as "{name.prefix}_*.rox", or a folder'
        )
    if options.dtype is not None:
        separator_items(options.separator, options.dtype)


def _integer(name: str, value: int) -> int:
    try:
        return as_index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _integer_or_none(name: str, value: int | None) -> int | None:
    return None if value is None else _integer(name, value)
