"""What a write may do with a corpus that exists: keep it, or append to it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.arguments import other_arguments
from roxxel_store.screen import counted, note

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
    decided, bins = recipe.decided(stored, kind), manifest.bins
    facts = {
        "dtype": (stored, decided.stored),
        "content": (kind, decided.kind if kind else None),
        "separator": ([*manifest.separator], [*decided.ending]),
        "pack": (None if bins is None else bins.unit, recipe.pack),
    }
    for name, (old, new) in facts.items():
        if old != new:
            raise ValueError(
                f"{what}: its {name} is {old}, but {new} of the new documents; append "
                f"with the same {name}, or write another corpus"
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
    return decided


def check_kept(
    manifest: Manifest,
    arguments: Mapping[str, Any],
    what: str,
    of_inputs: Callable[[object], str] | None,
) -> None:
    """Check that a write with `exist="keep"` may keep a corpus.

    Raises FileExistsError if a version of the corpus was made with other arguments.
    `of_inputs` describes how recorded inputs differ from those of this write.
    """
    versions = manifest.versions
    for number, version in enumerate(versions, 1):
        if version.arguments == arguments:
            continue
        which = f"version {number} of {len(versions)} was " if len(versions) > 1 else ""
        found = _difference(version.arguments, arguments, of_inputs)
        raise FileExistsError(
            f'{what}: {which}{found}; use exist="append" to add documents, write '
            'elsewhere, or use exist="replace", which deletes the shards from under '
            "every run that trains on them"
        )


def _difference(
    recorded: Mapping[str, Any],
    arguments: Mapping[str, Any],
    of_inputs: Callable[[object], str] | None,
) -> str:
    """Describe how the arguments of a write differ from the recorded arguments."""
    if not recorded:
        return "made with other arguments (not recorded)"
    # Inputs are too long for a message, so only what differs of them is said.
    past, now = (
        {
            name: _as_given(name, value)
            for name, value in each.items()
            if name != "inputs" or of_inputs is None
        }
        for each in (recorded, arguments)
    )
    pairs = other_arguments(past, now)
    if not pairs and of_inputs is not None and "inputs" in recorded:
        return of_inputs(recorded["inputs"])
    return f"made with other arguments ({pairs or 'its inputs are not recorded'})"


def _as_given(name: str, value: Any) -> Any:
    """Return a recorded argument as the caller gives it."""
    if name == "split" and value is not None:
        return f"{value[0]}={value[1]}".removeprefix("=")
    return parse_separator(value) if name == "separator" else value


def say_kept(what: str, kept: WriteSummary, recipe: Recipe, data: object) -> None:
    """Print what a write with `exist="keep"` kept, and that it read no documents.

    Warns if `data`, as given to the write, has another number of documents. The warning
    names the line in the user's program.
    """
    said = (
        f"kept {kept.num_tokens:,} tokens of {what}; the documents given were not read "
        '(exist="replace" writes them)'
    )
    count = len(cast("Sequence[object]", data)) if isinstance(data, Sequence) else None
    if count in {None, kept.num_documents} or recipe.pack is not None:
        note(said)
    else:
        warnings.warn(
            f"{said}, although {counted(count or 0, 'document')} "
            f"{'is' if count == 1 else 'are'} given, and not {kept.num_documents:,}",
            stacklevel=4,
        )


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
        f"other side; {old.how_to_append()}"
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
