"""The files of a corpus of one file, which needs no manifest.

The file appears by the rename of its draft, which its writer has locked. So there is
one writer at a time, and no draft of a living writer is taken for a leftover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store.files import draft_path, drafted_name, names_in
from roxxel_store.locks import held

from roxxel_format._read.shard import ends_of, open_shard
from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import Manifest, Version, bins_of
from roxxel_format._spec.tables import as_table
from roxxel_format.errors import NotAShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName


def existing_file(name: CorpusName) -> Manifest | None:
    """Return a manifest of the file; None if there is none.

    Raises:
        NotAShardError: The file is something else.
    """
    if not name.single.exists():
        return None
    try:
        arguments = open_shard(str(name.single)).metadata().get("arguments")
    except NotAShardError as error:
        raise NotAShardError(
            f"{name.single}: not a Roxxel shard, so it is not written over; pass "
            'exist="replace" to write the corpus in its place, or write under another '
            "name"
        ) from error
    return manifest_of([name.single], as_table(arguments))


def manifest_of(paths: Sequence[Path], arguments: Mapping[str, Any]) -> Manifest:
    """Make a manifest of one version; read its entries from the ends of the shards."""
    ends = ends_of([str(path) for path in paths])
    layouts, every = [layout for layout, _ in ends], [each for _, each in ends]
    metadata = every[0]
    table = shard_table([path.name for path in paths], layouts)
    head = layouts[0].head
    (fingerprint,) = table.fingerprints([len(table)])
    return Manifest(
        dtype_name=head.dtype_name,
        block_size=head.block_size,
        separator=tuple(metadata.get("separator") or ()),
        tokenizer=as_table(metadata.get("tokenizer")) or None,
        shards=table,
        versions=(Version(len(table), fingerprint, arguments),),
        bins=bins_of(zip(map(str, paths), every, strict=True)),
    )


def only_writer(name: CorpusName) -> AbstractContextManager[None]:
    """Hold the lock of the draft, which is made if it does not exist.

    Raises:
        BlockingIOError: Another program writes the file.
    """
    busy = f"{name.pattern}: a write of this corpus is in progress; wait for it"
    return held(draft_path(name.single), busy=busy)


def tokenizers_left(name: CorpusName) -> list[str]:
    """Return the names of files that keep a tokenizer for no file of this name.

    The metadata of the file name the tokenizer's file.
    """
    recorded: object = None
    if name.single.exists():
        try:
            metadata = open_shard(str(name.single)).metadata()
        except ShardError:
            return []
        recorded = as_table(metadata.get("tokenizer_file")).get("name")
    own = filter(name.keeps_tokenizer, names_in(name.folder))
    return [each for each in own if each != recorded]


def leftovers(name: CorpusName) -> list[Path]:
    """Return the drafts of the file, one of which may be that of a living writer."""
    left = [n for n in names_in(name.folder) if drafted_name(n) == name.single.name]
    return [name.folder / each for each in (*left, *tokenizers_left(name))]


def clean(name: CorpusName) -> list[Path]:
    """Remove and return leftovers; raise BlockingIOError while a write is going on."""
    before = leftovers(name)
    if not before:
        return []
    lock = draft_path(name.single)
    with only_writer(name):
        found = [each for each in leftovers(name) if each in before or each != lock]
        for each in {*found, lock}:
            each.unlink()
    return found
