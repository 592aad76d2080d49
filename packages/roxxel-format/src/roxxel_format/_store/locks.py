"""Locks between the writers of a corpus, on files beside the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.files import draft_path
from roxxel_store.locks import held

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from roxxel_format._store.corpus_name import CorpusName


def committing(name: CorpusName) -> AbstractContextManager[None]:
    """Wait for and hold the lock that protects the manifest."""
    return held(name.commit_lock)


def writing(name: CorpusName) -> AbstractContextManager[None]:
    """Wait for `clean`, and hold the lock that prevents it from removing new shards."""
    return held(name.write_lock, is_shared=True)


def alone(name: CorpusName) -> AbstractContextManager[None]:
    """Wait for `clean`, and hold the lock that excludes all writes of a corpus.

    The lock file of a corpus of one file is its draft. Raises BlockingIOError if
    another write is in progress.
    """
    busy = f"{name.pattern}: a write of this corpus is in progress; wait for it"
    if name.manifest is None:
        return held(draft_path(name.single), busy=busy)
    return held(name.write_lock, busy=busy, wait_for_exclusive=True)
