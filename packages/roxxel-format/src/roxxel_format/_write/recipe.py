"""What the manifest says about a write's documents, and the commit of its shards.

A recipe is decided once, before or with the first document, and then passed on: one
recipe commits the shards of one process, of tasks on many machines, or of a
preparation's units. On a disk and in a bucket, a commit compares and replaces the
manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command

from roxxel_format._spec.manifest import Manifest
from roxxel_format._spec.tables import BinTable, unit_text
from roxxel_format._write.fields import LOSS_MASK
from roxxel_format._write.intake import separator_items
from roxxel_format._write.series import NoDocumentsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_format._spec.tables import NewShards
    from roxxel_format._write.options import Exist, WriteSummary
    from roxxel_format._write.place import Place


SPLIT = "split"
"""The argument of a write that holds out documents: name, share and side."""

_MADE_BY = {
    "id": "document_id (--id)",
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


@dataclass(frozen=True)
class Recipe:
    """What a manifest says about the documents of a write.

    Attributes:
        exist: What the write does with an existing corpus.
        arguments: The arguments that the manifest records.
        tokenizer: The record of the tokenizer.
        separator: A token, bytes or None; see `separator_items`.
        block_size: Size of a block in bytes.
        columns: The columns by name: per token or document, and item type.
        dtype: Name of the item type; None until a document decides.
        kind: `"text"` or `"tokens"`; None until a document decides.
        unit: Tokens of a bin; None unless the documents are packed.
        encoder: What encodes the texts, with versions; None if unknown. An append may
            use another one, because all give the same ids.
        tokenizer_file: Name and size of the file that keeps the tokenizer.
        without_columns: Columns for which an append brings no values.

    Example:
        >>> Recipe("error", {}, None, 0, 4096, {}).decided("uint16", "tokens").dtype
        'uint16'
    """

    exist: Exist
    arguments: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None
    separator: float | bytes | None
    block_size: int
    columns: Mapping[str, tuple[str, str]]
    dtype: str | None = None
    kind: str | None = None
    unit: int | None = None
    encoder: str | None = None
    tokenizer_file: tuple[str, int] | None = None
    without_columns: Sequence[str] = ()

    @property
    def appends(self) -> bool:
        """Whether the new shards follow those of the manifest."""
        return self.exist == "append"

    def decided(self, dtype: str | None, kind: str | None) -> Recipe:
        """Return this recipe, with an item type and a kind if it has none."""
        return replace(self, dtype=self.dtype or dtype, kind=self.kind or kind)

    def for_corpus(self, manifest: Manifest, what: str) -> Recipe:
        """Return the recipe for the corpus `what`, by the manifest at the start.

        A write that appends takes item type and kind from the corpus.

        Raises:
            FileExistsError: The write may not change the corpus.
            ValueError: The documents do not fit the corpus.
        """
        if not manifest.versions or self.exist == "replace":
            return self
        if not self.appends:
            raise FileExistsError(
                f'{what}: the corpus exists already; use exist="keep", '
                'exist="replace" or exist="append", or write elsewhere'
            )
        stored, kind = str(manifest.dtype_name), manifest.kind
        if self.dtype not in {None, stored}:
            raise ValueError(
                f"{what}: holds {stored}, so {self.dtype} cannot be appended; "
                "leave dtype and vocab_size out, or write another corpus"
            )
        if None not in (kind, self.kind) and kind != self.kind:
            raise ValueError(
                f"{what}: holds {kind}, so {self.kind} cannot be appended; write text "
                "and ready-made tokens into different corpora"
            )
        if manifest.tokenizer != self.tokenizer:
            raise ValueError(
                f"{what}: was written with another tokenizer; append with the same "
                "tokenizer, or write another corpus"
            )
        _check_split(manifest, self.arguments, what)
        _check_columns(manifest, self.columns, self.without_columns, what)
        for name, (per, dtype) in self.columns.items():
            old = manifest.columns[name]
            if (old.per, old.dtype) != (per, dtype):
                raise ValueError(
                    f"{what}: its column {name!r} holds {old.dtype} per {old.per}, so "
                    f"{dtype} per {per} cannot be appended; replace that column with "
                    "write_column, or write another corpus"
                )
        separator = separator_items(self.separator, stored)
        if separator != tuple(manifest.separator):
            raise ValueError(
                f"{what}: its documents end with {_ending(manifest.separator)}, "
                f"the new ones with {_ending(separator)}; append with the same "
                "separator, or write another corpus"
            )
        bins = None if self.unit is None else BinTable(self.unit)
        if unit_text(bins) != unit_text(manifest.bins):
            raise ValueError(
                f"{what}: holds {unit_text(manifest.bins)}, so {unit_text(bins)} "
                "cannot be appended; append with the same pack, or write another corpus"
            )
        return self.decided(stored, kind)

    @staticmethod
    def split_of(manifest: Manifest) -> list[Any] | None:
        """Return the share by which a corpus was divided, and its rule; None if not."""
        recorded = manifest.last.arguments.get(SPLIT)  # Appends have the same.
        return None if recorded is None else recorded[1:]

    @staticmethod
    def how_to_append(manifest: Manifest | None, share: float) -> str:
        """Describe how to add documents to both sides of a split.

        A split of a corpus copies no columns, and does not divide bins.
        """
        if manifest is not None and (manifest.columns or manifest.bins is not None):
            command = roxxel_command(f"prepare write NEW FILES --split NAME={share}")
            return (
                "write the new documents into two corpora of their own, divided by the "
                f"same rule, with `{command}`"
            )
        command = roxxel_command(
            f"prepare write KEPT NEW --split NAME={share} --exist append"
        )
        return (
            "write the new documents into a corpus NEW of their own, and divide it by "
            f"the same rule with `{command}`"
        )

    def may_append(self, manifest: Manifest) -> bool:
        """Return whether the documents of this recipe can be appended to a corpus.

        A split writes several corpora, which one append cannot extend.
        """
        if SPLIT in self.arguments:
            return False
        try:
            replace(self, exist="append").for_corpus(manifest, "")
        except ValueError:
            return False
        return True

    def commit(
        self,
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
        recipe, base = self.decided(new.dtype, new.kind), place.end.fingerprint
        kept = dict(filter(None, [self.tokenizer_file]))
        before: set[str] = set()
        while True:
            place.check_present({**new.sizes, **kept})
            if not self.appends:
                before = place.found.file_names()
            added = recipe._added(place, new)  # noqa: SLF001 - of self
            if place.commit(added, appends=self.appends):
                break
            # Another write was first: look at its manifest, and perhaps try again.
            place.begin()
            if place.lists(new.shards.names):
                # Committed already: by us, and the answer was lost, or by another
                # process of this write.
                return place.summary(new, started)
            if self.exist == "replace" and place.end.fingerprint == base:
                continue  # It was a compaction, so there is still the same to replace.
            is_unclear = self.appends and place.files.may_act_late
            if is_unclear and place.lists([str(added.fingerprint)]):
                # Names cannot tell any more whose documents were merged.
                raise FileExistsError(
                    f"{place.manifest}: another program changed the corpus during this "
                    "commit, and has appended the same documents, or merged those of "
                    "this commit; compare the corpus with "
                    f"`{roxxel_command('format info')}` before you write again, "
                    "because an append may add the documents twice"
                )
            if not self.appends:
                raise FileExistsError(
                    f"{place.manifest}: another write was committed first, "
                    f"{lost(place)}"
                )
        if not self.appends:
            place.discard(before - added.file_names())
        return place.summary(new, started)

    def _added(self, place: Place, new: NewShards) -> Manifest:
        """Return a manifest of only the new shards, for an append to add."""
        end = Manifest()
        if self.appends:
            end = place.end
            self.for_corpus(end, place.pattern)
        if not end.versions:
            assert self.dtype is not None  # noqa: S101 - a document decided
            end = Manifest(
                dtype_name=self.dtype,
                block_size=self.block_size,
                separator=separator_items(self.separator, self.dtype),
                tokenizer=self.tokenizer,
                kind=self.kind,
                bins=None if self.unit is None else BinTable(self.unit),
            )
        elif place.lists(new.shards.names[:1]):
            raise FileExistsError(
                f"{place.folder}{new.shards.names[0]}: another process committed the "
                "same units during this write; to append them twice, write again"
            )
        version = end.last.followed_by(
            new.shards, new.bins, self.arguments, self.encoder, self.tokenizer_file
        )
        return replace(
            end,
            shards=new.shards,
            columns=new.columns,
            versions=(version,),
            bins=new.bins,
        )


def _check_split(manifest: Manifest, arguments: Mapping[str, Any], what: str) -> None:
    """Raise ValueError unless a corpus and new documents are on one side of a split.

    Otherwise the corpus could get documents that it held out, or on which others train.
    """
    old, new = Recipe.split_of(manifest), arguments.get(SPLIT)
    if old == (None if new is None else new[1:]):
        return
    if old is None:
        raise ValueError(
            f"{what}: was not divided by a split, so a side of one cannot be appended; "
            "write another corpus"
        )
    share, _ = old
    raise ValueError(
        f"{what}: is one side of a split, and other documents could be those of the "
        f"other side; {Recipe.how_to_append(manifest, share)}"
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
