"""The commit of a write: its shards become a corpus, as its recipe says.

One commit serves the shards of one process, of tasks on many machines, and of a
preparation's units. On a disk and in a bucket, it compares and replaces the manifest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_store import roxxel_command

from roxxel_format._spec.manifest import Manifest
from roxxel_format._spec.tables import BinTable, unit_text
from roxxel_format._write.casting import NoDocumentsError, separator_items
from roxxel_format._write.recipe import Recipe, Side
from roxxel_format._write.rows import LOSS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from roxxel_format._spec.tables import NewShards
    from roxxel_format._write.place import Place
    from roxxel_format._write.summary import WriteSummary

_MADE_BY = {
    "id": "document_id (--document-id)",
    "path": "path=True (--path)",
    LOSS_MASK: "prompt and completion (--prompt, --completion) or chat (--chat)",
}
"""What makes a column of a write."""


def _write_again(place: Place) -> str:
    del place
    return (
        "so this write was discarded; to replace the other, write again with "
        'exist="replace"'
    )


def for_corpus(recipe: Recipe, manifest: Manifest, what: str) -> Recipe:
    """Return the recipe for the corpus `what`, by the manifest at the start.

    A write that appends takes item type and kind from the corpus.

    Raises:
        FileExistsError: The write may not change the corpus.
        ValueError: The documents do not fit the corpus.
    """
    if not manifest.versions or recipe.exist == "replace":
        return recipe
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
    separator = separator_items(recipe.separator, stored)
    if separator != tuple(manifest.separator):
        raise ValueError(
            f"{what}: its documents end with {_ending(manifest.separator)}, "
            f"the new ones with {_ending(separator)}; append with the same "
            "separator, or write another corpus"
        )
    bins = None if recipe.pack is None else BinTable(recipe.pack)
    if unit_text(bins) != unit_text(manifest.bins):
        raise ValueError(
            f"{what}: holds {unit_text(manifest.bins)}, so {unit_text(bins)} "
            "cannot be appended; append with the same pack, or write another corpus"
        )
    return recipe.decided(stored, kind)


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


def commit(
    recipe: Recipe,
    place: Place,
    new: NewShards,
    started: float,
    lost: Callable[[Place], str] = _write_again,
) -> WriteSummary:
    """Commit shards and columns, which are complete at the place.

    If another write committed since `place.begin`, an append begins again from the
    new manifest. A write that replaces the corpus does so only if the other write
    was a compaction, which changes no document.

    Args:
        recipe: The arguments of the write, with what the tokenizer decides.
        place: Where the corpus is.
        new: The shards.
        started: When the write began, by `time.perf_counter`.
        lost: Called if another write was committed first; returns a sentence that
            says what this means and what to do.

    Raises:
        FileExistsError: Another write changed the documents first, and this write
            does not append. Or the shards were merged before the answer arrived.
        FileNotFoundError: A file is missing.
        NoDocumentsError: There are no shards.
    """
    if not len(new):
        raise NoDocumentsError(place.pattern)
    recipe, base = recipe.decided(new.dtype, new.kind), place.end.fingerprint
    tokenizer = dict(filter(None, [recipe.tokenizer_file]))
    before: set[str] = set()
    while True:
        place.check_present({**new.sizes, **tokenizer})
        if recipe.exist != "append":
            before = place.found.file_names()
        added = _added(recipe, place, new)
        if place.commit(added, appends=recipe.exist == "append"):
            break
        # Another write was first: look at its manifest, and perhaps try again.
        place.begin()
        if place.lists(new.shards.names):
            # Committed already: by us, and the answer was lost, or by another
            # process of this write.
            return place.summary(new, started)
        if recipe.exist == "replace" and place.end.fingerprint == base:
            continue  # It was a compaction, so there is still the same to replace.
        is_unclear = recipe.exist == "append" and place.files.may_act_late
        if is_unclear and place.lists([str(added.fingerprint)]):
            # Names cannot tell any more whose documents were merged.
            raise FileExistsError(
                f"{place.manifest}: another program changed the corpus during this "
                "commit, and has appended the same documents, or merged those of "
                "this commit; compare the corpus with "
                f"`{roxxel_command('format info')}` before you write again, "
                "because an append may add the documents twice"
            )
        if recipe.exist != "append":
            raise FileExistsError(
                f"{place.manifest}: another write was committed first, {lost(place)}"
            )
    if recipe.exist != "append":
        place.discard(before - added.file_names())
    return place.summary(new, started)


def _added(recipe: Recipe, place: Place, new: NewShards) -> Manifest:
    """Return a manifest of only the new shards, for an append to add."""
    end = Manifest()
    if recipe.exist == "append":
        end = place.end
        for_corpus(recipe, end, place.pattern)
    if not end.versions:
        assert recipe.stored is not None  # noqa: S101 - a document decided
        end = Manifest(
            dtype_name=recipe.stored,
            block_size=recipe.block_size,
            separator=separator_items(recipe.separator, recipe.stored),
            tokenizer=recipe.tokenizer_record,
            kind=recipe.kind,
            bins=None if recipe.pack is None else BinTable(recipe.pack),
        )
    elif place.lists(new.shards.names[:1]):
        raise FileExistsError(
            f"{place.folder}{new.shards.names[0]}: another process committed the "
            "same units during this write; to append them twice, write again"
        )
    version = end.last.followed_by(
        new.shards, new.bins, recipe.recorded, recipe.encoder, recipe.tokenizer_file
    )
    return replace(
        end,
        shards=new.shards,
        columns=new.columns,
        versions=(version,),
        bins=new.bins,
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
