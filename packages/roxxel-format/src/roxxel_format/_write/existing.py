"""What a write finds: a corpus to keep, to append to, or shards of version 1.

Version 1 of this package had no manifests: the `write` field in the metadata of its
shards tells whether a write of them was interrupted (docs/format.md, section 10.6).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from roxxel_format._read.discovery import are_complete, replacement_marker
from roxxel_format._read.shard import Shard
from roxxel_format._spec.manifest import Manifest, ShardTable, Version
from roxxel_format._spec.metadata import as_table
from roxxel_format._store.corpus_name import own_names
from roxxel_format._store.local import names_in
from roxxel_format._write.commit import commit, read_committed
from roxxel_format._write.summary import summary_of
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.commit import Committed
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import Exist
    from roxxel_format._write.summary import WriteSummary


def keep(
    name: CorpusName, arguments: Mapping[str, Any], started: float
) -> WriteSummary | None:
    """Return the summary of a whole corpus, None if there is none.

    Takes no lock, so a corpus in a folder that cannot be written to is kept too.

    Args:
        name: Where a corpus is to be written.
        arguments: What it is to be written with.
        started: When the write began, by `time.perf_counter`.

    Raises:
        FileExistsError: The corpus was made with other arguments, or lacks a file.
    """
    manifest = _existing(name)
    if manifest is None or not manifest.versions:
        return None
    recorded = manifest.versions[-1].arguments
    if recorded != arguments:
        raise FileExistsError(
            f"{name.pattern}: made with other arguments "
            f'({_difference(recorded, arguments)}); use exist="replace" or '
            'exist="append", or write elsewhere'
        )
    missing = set(manifest.shards.names) - set(names_in(name.folder))
    if missing:
        raise FileExistsError(
            f"{name.folder / min(missing)}: a shard of the corpus is missing; restore "
            'it, or use exist="replace"'
        )
    summary = summary_of(
        manifest.shards,
        str(manifest.dtype_name),
        name.folder,
        kept=True,
        duration_s=time.perf_counter() - started,
    )
    tell_user(f"{name.folder}: {summary}")
    return summary


def find(name: CorpusName, exist: Exist) -> Committed:
    """Return the manifest that a write begins from; version 1 gets one now.

    Args:
        name: The corpus.
        exist: Whether the write appends (needs a whole corpus, if there is one), or
            replaces (goes past a damaged one).

    Raises:
        ShardError: The corpus is damaged; or a write of version 1 was interrupted, so
            that nothing can be appended.
    """
    replaces = exist == "replace"
    found = read_committed(name, replaces=replaces)
    if found.data is not None:
        return found
    try:
        manifest = version_1(name)
    except ShardError:
        if not replaces:
            raise
        manifest = Manifest()
    if manifest is None:
        return found
    if not manifest.versions and exist == "append":
        raise ShardError(
            f"{name.pattern}: a write of its shards was interrupted; write the corpus "
            'again with exist="replace"'
        )
    commit(name, found, manifest)
    return read_committed(name, replaces=replaces)


def check_appendable(
    name: CorpusName,
    manifest: Manifest,
    intake: Intake,
    separator: tuple[int | float, ...] | None,
) -> None:
    """Check that documents can be appended, and let the corpus decide their dtype.

    Args:
        name: The corpus.
        manifest: Of the corpus; everything can be appended to one without versions.
        intake: Of the documents.
        separator: Items that end each document; None while the dtype is unknown.

    Raises:
        ValueError: The corpus has another dtype, tokenizer or separator.
    """
    stored = manifest.dtype_name
    if stored is None:
        return
    if intake.dtype is not None and intake.dtype != stored:
        raise ValueError(
            f"{name.pattern}: holds {stored}, so {intake.dtype} cannot be appended; "
            "leave dtype and vocab_size out, or write another corpus"
        )
    intake.dtype = stored
    if manifest.tokenizer != (intake.info.to_dict() if intake.info else None):
        raise ValueError(
            f"{name.pattern}: was written with another tokenizer; append with the same "
            "tokenizer, or write another corpus"
        )
    if separator is not None and separator != tuple(manifest.separator):
        raise ValueError(
            f"{name.pattern}: its documents end with the separator "
            f"{list(manifest.separator)}, and these with {list(separator)}; append "
            "with the same separator, or write another corpus"
        )


def version_1(name: CorpusName) -> Manifest | None:
    """Return the manifest for numbered shards that have none.

    Returns:
        A manifest of one version, the corpus as version 1 of this package reads it;
        of none if a write of the shards was interrupted; None if there are no shards.

    Raises:
        ShardError: A file is not a whole shard.
    """
    numbers = [(name.number(each), each) for each in own_names(name)]
    numbered = sorted((number, each) for number, each in numbers if number is not None)
    if not numbered:
        return None
    paths = [name.folder / each for _, each in numbered]
    shards = [Shard(path) for path in paths]
    metadata = [shard.read_metadata() for shard in shards]
    writes = [as_table(each.get("write")) for each in metadata]
    is_complete = are_complete([write for write in writes if write])
    if replacement_marker(name).exists() or not is_complete:
        return Manifest()
    arguments = as_table(writes[-1].get("arguments"))
    return _manifest_of(paths, shards, metadata[0], arguments)


def tell_user(line: str) -> None:
    """Tell the user in one line what a write does with an existing corpus."""
    sys.stderr.write(line + "\n")


def _existing(name: CorpusName) -> Manifest | None:
    if name.manifest is not None:
        found = read_committed(name)
        return version_1(name) if found.data is None else found.manifest
    if not name.single.exists():
        return None
    shard = Shard(name.single)
    metadata = shard.read_metadata()
    arguments = metadata.get("arguments")
    if arguments is None:  # written by version 1 of this package
        arguments = as_table(metadata.get("write")).get("arguments")
    return _manifest_of([name.single], [shard], metadata, as_table(arguments))


def _manifest_of(
    paths: Sequence[Path],
    shards: Sequence[Shard],
    metadata: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Manifest:
    """Return a manifest of one version, by the feet of the shards."""
    table = ShardTable.of(
        [path.name for path in paths], [shard.layout for shard in shards]
    )
    head = shards[0].layout.head
    (fingerprint,) = table.fingerprints([len(table)])
    return Manifest(
        dtype_name=head.dtype_name,
        block_size=head.block_size,
        separator=tuple(metadata.get("separator") or ()),
        tokenizer=as_table(metadata.get("tokenizer")) or None,
        shards=table,
        versions=(Version(len(table), fingerprint, arguments),),
    )


def _difference(recorded: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    if not recorded:
        return "not recorded"
    return ", ".join(
        f"{name}={recorded.get(name)!r} there, {value!r} here"
        for name, value in arguments.items()
        if recorded.get(name) != value
    )
