"""What a write may do with a corpus that exists: keep it, or append to it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.arguments import other_arguments
from roxxel_store.screen import note

from roxxel_format._spec.dtypes import separator_items
from roxxel_format._spec.manifest import BinTable, unit_text
from roxxel_format._write.recipe import Recipe, Side, parse_separator
from roxxel_format._write.rows import LOSS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._write.summary import WriteSummary

_MADE_BY = {
    "id": "document_id (--document-id)",
    "path": "path=True (--path)",
    LOSS_MASK: "prompt and completion (--prompt, --completion) or chat (--chat)",
}
"""What makes a column of a write."""


def for_corpus(recipe: Recipe, manifest: Manifest, what: str) -> Recipe:
    """Return the recipe of an append, with item type and kind of the corpus `what`.

    Raises:
        FileExistsError: The write may not change the corpus.
        ValueError: The documents do not fit the corpus.
    """
    if recipe.exist != "append":
        raise FileExistsError(
            f'{what}: the corpus exists already; use exist="keep", '
            'exist="replace" or exist="append", or write elsewhere'
        )
    stored, kind = str(manifest.dtype_name), manifest.kind
    if recipe.stored not in {None, stored}:
        raise ValueError(
            f"{what}: holds {stored}, so {recipe.stored} cannot be appended; "
            "leave dtype and vocab_size out, or write another corpus"
        )
    if None not in (kind, recipe.kind) and kind != recipe.kind:
        raise ValueError(
            f"{what}: holds {kind}, so {recipe.kind} cannot be appended; write text "
            "and ready-made tokens into different corpora"
        )
    if manifest.tokenizer != recipe.tokenizer_record:
        raise ValueError(
            f"{what}: was written with another tokenizer; append with the same "
            "tokenizer, or write another corpus"
        )
    _check_split(manifest, recipe.side, what)
    _check_columns(manifest, recipe.fields.columns, recipe.without_columns, what)
    for name, (per, dtype) in recipe.fields.columns.items():
        old = manifest.columns[name]
        if (old.per, old.dtype) != (per, dtype):
            raise ValueError(
                f"{what}: its column {name!r} holds {old.dtype} per {old.per}, so "
                f"{dtype} per {per} cannot be appended; replace that column with "
                "write_column, or write another corpus"
            )
    decided = recipe.decided(stored, kind)
    if decided.ending != tuple(manifest.separator):
        raise ValueError(
            f"{what}: its documents end with {_ending(manifest.separator)}, "
            f"the new ones with {_ending(decided.ending)}; append with the same "
            "separator, or write another corpus"
        )
    bins = manifest.bins
    if recipe.pack != (None if bins is None else bins.unit):
        new = None if recipe.pack is None else BinTable(recipe.pack)
        raise ValueError(
            f"{what}: holds {unit_text(bins)}, so {unit_text(new)} cannot be appended; "
            "append with the same pack, or write another corpus"
        )
    return decided


def may_append(recipe: Recipe, manifest: Manifest) -> bool:
    """Return whether the documents of this recipe can be appended to a corpus.

    A split writes several corpora, which one append cannot extend.
    """
    if recipe.side is not None:
        return False
    try:
        for_corpus(replace(recipe, exist="append"), manifest, "")
    except ValueError:
        return False
    return True


def check_kept(
    manifest: Manifest,
    arguments: Mapping[str, Any],
    what: str,
    describe: Callable[[Mapping[str, Any]], str | None] | None,
    *,
    may_append: bool,
) -> None:
    """Check that a write with `exist="keep"` may keep a corpus.

    Raises FileExistsError if a version of the corpus was made with other arguments.
    `describe` may word the difference better. `may_append` says whether to offer an
    append.
    """
    versions = manifest.versions
    for number, version in enumerate(versions, 1):
        if version.arguments == arguments:
            continue
        which = f"version {number} of {len(versions)} was " if len(versions) > 1 else ""
        better = None if describe is None else describe(version.arguments)
        found = better or _difference(version.arguments, arguments)
        append = 'use exist="append" to add documents, ' if may_append else ""
        raise FileExistsError(
            f"{what}: {which}{found}; {append}write "
            'elsewhere, or use exist="replace", which deletes the shards from under '
            "every run that trains on them"
        )


def _difference(recorded: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Describe how the arguments of a write differ from the recorded arguments."""
    if not recorded:
        return "made with other arguments (not recorded)"
    # Inputs are too long for a message; a preparation says which of them differs.
    has_inputs = isinstance(arguments.get("inputs"), dict)
    past, now = (
        {
            name: _as_given(name, value)
            for name, value in each.items()
            if not (name == "inputs" and has_inputs)
        }
        for each in (recorded, arguments)
    )
    pairs = other_arguments(past, now) or "its inputs are not recorded"
    return f"made with other arguments ({pairs})"


def _as_given(name: str, value: Any) -> Any:
    """Return a recorded argument as the caller gives it."""
    if name == "split" and value is not None:
        return f"{value[0]}={value[1]}".removeprefix("=")
    return parse_separator(value) if name == "separator" else value


def say_kept(what: str, kept: WriteSummary, recipe: Recipe, data: object) -> None:
    """Print what a write with `exist="keep"` kept, and that it read no documents.

    Warns if `data`, as given to the write, visibly differs from what was kept. The
    warning names the line in the user's program.
    """
    said = (
        f"kept {kept.num_tokens:,} tokens of {what}; the documents given were not read "
        '(exist="replace" writes them)'
    )
    other = _other_data(data, kept, recipe)
    if other is None:
        note(said)
    else:
        warnings.warn(f"{said}, although {other}", stacklevel=4)


def _other_data(data: object, kept: WriteSummary, recipe: Recipe) -> str | None:
    """Describe how documents in memory differ from those that were kept."""
    if not isinstance(data, Sequence) or recipe.pack is not None:
        return None
    documents = cast("Sequence[object]", data)
    if len(documents) != kept.num_documents:
        return f"{len(documents):,} documents are given, not {kept.num_documents:,}"
    if recipe.tokenizer is not None or not all(
        isinstance(each, (str, bytes, list, np.ndarray)) for each in documents
    ):
        return None
    texts = (x.encode() if isinstance(x, str) else x for x in documents)
    separator = len(separator_items(recipe.separator, kept.dtype))
    given = sum(map(len, cast("Iterable[bytes]", texts))) + separator * len(documents)
    if given != kept.num_tokens:
        return f"{given:,} tokens are given"
    return None


def _check_split(manifest: Manifest, new: Side | None, what: str) -> None:
    """Raise ValueError unless a corpus and new documents are on one side of a split.

    Otherwise the corpus could get documents that it held out, or on which others train.
    """
    old = Side.of(manifest)
    if (old and old[1:]) == (new and new[1:]):
        return
    if old is None:
        raise ValueError(
            f"{what}: was not divided by a split, so a side of one cannot be appended; "
            "write another corpus"
        )
    raise ValueError(
        f"{what}: is one side of a split, and other documents could be those of the "
        f"other side; {Recipe.how_to_append(manifest, *old[:2])}"
    )


def _check_columns(
    manifest: Manifest, columns: Iterable[str], without: Iterable[str], what: str
) -> None:
    """Raise ValueError unless new documents bring exactly the columns of a corpus.

    A column that only some shards have cannot be read.
    """
    for name in columns:
        if name not in manifest.columns:
            raise ValueError(
                f"{what}: has no column {name!r}, so that of the new documents could "
                f"not be read; leave {_MADE_BY.get(name, name)} out, write another "
                f"corpus, or first write the column with write_column({name!r}, ...)"
            )
    for name in manifest.columns:
        if name not in {*columns, *without}:
            option = f"pass {_MADE_BY[name]}, or " if name in _MADE_BY else "pass "
            raise ValueError(
                f"{what}: has a column {name!r}, which could not be read any more "
                f"without values for the new documents; {option}"
                f"without_columns=[{name!r}] (--without-columns {name}), and then "
                f'write the values with write_column({name!r}, ..., exist="append")'
            )


def _ending(separator: Sequence[int | float]) -> str:
    return f"the separator {list(separator)}" if separator else "no separator"
