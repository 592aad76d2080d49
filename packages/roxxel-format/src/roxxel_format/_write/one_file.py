"""The files of a corpus of one file, which needs no manifest.

The file appears by the rename of its draft, which its writer has locked. So there is
one writer at a time, and nobody takes a living writer's draft for a leftover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.files import draft_path, drafted_name, names_in
from roxxel_store.locks import held

from roxxel_format._read.shard import open_shard
from roxxel_format._spec.in_memory import manifest_of
from roxxel_format._spec.manifest import as_table
from roxxel_format.errors import NotAShardError, ShardError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_format._spec.manifest import Manifest
    from roxxel_format._store.corpus_name import CorpusName


def existing_file(name: CorpusName) -> Manifest | None:
    """Return a manifest of the file; None if there is none.

    Raises:
        NotAShardError: The file is something else.
    """
    if not name.single.exists():
        return None
    path = str(name.single)
    try:
        shard = open_shard(path)
    except NotAShardError as error:
        raise NotAShardError(
            f"{name.single}: not a Roxxel shard, so it is not written over; pass "
            'exist="replace" to write the corpus in its place, or write under another '
            "name"
        ) from error
    return manifest_of(path, shard.layout, shard.metadata())


def only_writer(name: CorpusName) -> AbstractContextManager[None]:
    """Hold the lock of the draft, which is made if it does not exist.

    Raises:
        BlockingIOError: Another program writes the file.
    """
    busy = f"{name.pattern}: a write of this corpus is in progress; wait for it"
    return held(draft_path(name.single), busy=busy)


def tokenizers_left(name: CorpusName) -> list[str]:
    """Return the names of kept tokenizers that the file does not use.

    The file's metadata names the tokenizer's file that it uses.
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
    """Return the drafts of the file; a living writer may use one of them."""
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
