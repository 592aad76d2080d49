"""Whether `exist="keep"` keeps a corpus, and the message about it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.arguments import other_arguments
from roxxel_store.screen import note

from roxxel_format._write.casting import separator_items
from roxxel_format._write.recipe import parse_separator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._write.recipe import Recipe
    from roxxel_format._write.summary import WriteSummary


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
