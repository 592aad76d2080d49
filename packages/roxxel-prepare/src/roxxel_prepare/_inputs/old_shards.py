"""Split shards of the first Roxxel at a separator; they do not record documents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from roxxel_format import ShardError
from roxxel_format.writing import CorpusWrite, Separator
from roxxel_store.screen import note
from roxxel_store.urls import check_on_disk

from roxxel_prepare._inputs.formats import is_compressed
from roxxel_prepare._inputs.input_file import InputError
from roxxel_prepare._inputs.inputs import is_present_shard
from roxxel_prepare._inputs.old_files import OldLine, is_untyped, items_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel_format.writing import Exist, WriteOptions

    from roxxel_prepare._inputs.documents import LineOf


def with_old_separator(
    filepath: str, options: WriteOptions, exist: Exist, path: str
) -> tuple[WriteOptions, LineOf | None]:
    """Return options for the new corpus, and a function that splits the old shards.

    The function splits the tokens of such shards at the separator, and returns the
    documents. The function is None without a separator: each shard is then one
    document, and a notice is printed unless the user chose this. A separator of bytes
    holds items in the dtype of the old shards, of which `path` is the first; the
    returned options hold the same items in the dtype of the new corpus.
    """
    is_default = options.separator is Separator.OF_TOKENIZER
    write = CorpusWrite(filepath, options, exist)  # Loads the tokenizer.
    separator = cast("int | bytes | None", write.options.separator_value)
    if separator is None and is_default and not is_present_shard(path):
        note(
            f"{path}: a shard of the first Roxxel does not record its documents, so "
            "each shard becomes one document; to cut documents at a separator, pass "
            "--separator or --separator-bytes"
        )
    if separator is None:
        return options, None
    if not isinstance(separator, bytes):
        return options, partial(_old_documents, separator, options.dtype_name)
    stored = _opened_old_shards([path], options.dtype_name).dtype
    items = items_of(separator, stored)
    if items.size == 1:
        options = replace(options, separator=items[0].item())
        return options, partial(_old_documents, separator, options.dtype_name)
    name = write.recipe.dtype or stored.name
    new = items.astype(name)
    if (new != items).any():
        raise ValueError(
            f"the separator {items.tolist()} of {path} does not fit {name}; choose a "
            "wider --dtype, or leave --dtype and --vocab-size out"
        )
    options = replace(options, separator=new.tobytes())
    return options, partial(_old_documents, separator, options.dtype_name)


def _old_documents(
    separator: int | bytes, dtype: str | None, paths: Sequence[str]
) -> Iterable[object]:
    return _opened_old_shards(paths, dtype).documents(separator)


def _opened_old_shards(paths: Sequence[str], dtype: str | None) -> OldLine:
    """Open shards of the first Roxxel.

    `dtype` is their item type if they do not record one.

    Raises:
        InputError: A file is compressed or the standard input, damaged, or not a shard.
    """
    for path in paths:
        remedy = (
            "but only shards in uncompressed files on a disk can be cut into "
            "documents; pass such files, or --separator none"
        )
        check_on_disk(path, f"is in a bucket, {remedy}", InputError)
        if path == "-" or is_compressed(path):
            what = "the standard input" if path == "-" else "compressed"
            raise InputError(f"{path}: is {what}, {remedy}")
    try:
        is_needed = all(map(is_untyped, paths))
        return OldLine(paths, dtype if is_needed else None)
    except ShardError as error:
        raise InputError(str(error)) from error
