"""The corpus that a write finds: one to keep, to append to, or shards of version 1.

Version 1 of this package had no manifests: the `write` field in the metadata of its
shards tells whether a write of them was interrupted (docs/format.md, section 10.6).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from roxxel_format._read.contents import layouts_of
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
    """Return the summary of a complete corpus, None if there is none.

    This takes no lock, so it works in a read-only folder.

    Args:
        name: The corpus.
        arguments: Arguments of the write, as a version records them.
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
    print_notice(f"{name.folder}: {summary}")
    return summary


def find_manifest(name: CorpusName, exist: Exist) -> Committed:
    """Return the manifest that a write begins from; commit one for version 1.

    Args:
        name: The corpus.
        exist: As for `Roxxel.write`: an append needs a complete corpus, if there is
            one; a replacement accepts a damaged one.

    Raises:
        ShardError: The corpus is damaged; or this is an append, and a write of version
            1 was interrupted.
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
    """Check that documents can be appended; set their dtype and kind to the corpus's.

    Args:
        name: The corpus.
        manifest: Manifest of the corpus; without versions, it accepts everything.
        intake: The intake of the documents; its dtype and kind become the corpus's.
        separator: Items that end each document; None while the dtype is unknown.

    Raises:
        ValueError: The corpus has another dtype, kind, tokenizer or separator.
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
    if manifest.kind is not None:
        if intake.kind not in {None, manifest.kind}:
            raise ValueError(
                f"{name.pattern}: holds {manifest.kind}, so {intake.kind} cannot be "
                "appended; write text and ready-made tokens into different corpora"
            )
        intake.kind = manifest.kind
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
        A manifest of one version; a manifest without versions if a write of the shards
        was interrupted; None if there are no shards.

    Raises:
        ShardError: A file is not a whole shard, or the item types differ.
    """
    numbers = [(name.number(each), each) for each in own_names(name)]
    numbered = sorted((number, each) for number, each in numbers if number is not None)
    if not numbered:
        return None
    paths = [name.folder / each for _, each in numbered]
    metadata = [Shard(path).read_metadata() for path in paths]
    writes = [as_table(each.get("write")) for each in metadata]
    is_complete = are_complete([write for write in writes if write])
    if replacement_marker(name).exists() or not is_complete:
        return Manifest()
    arguments = as_table(writes[-1].get("arguments"))
    return _manifest_of(paths, metadata[0], arguments)


def print_notice(line: str) -> None:
    """Print one line that says what a write does with an existing corpus."""
    sys.stderr.write(line + "\n")


def _existing(name: CorpusName) -> Manifest | None:
    if name.manifest is not None:
        found = read_committed(name)
        return version_1(name) if found.data is None else found.manifest
    if not name.single.exists():
        return None
    metadata = Shard(name.single).read_metadata()
    arguments = metadata.get("arguments")
    if arguments is None:  # written by version 1 of this package
        arguments = as_table(metadata.get("write")).get("arguments")
    return _manifest_of([name.single], metadata, as_table(arguments))


def _manifest_of(
    paths: Sequence[Path],
    metadata: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Manifest:
    """Return a manifest of one version, made from the feet of the shards."""
    layouts = layouts_of([str(path) for path in paths])
    table = ShardTable.of([path.name for path in paths], layouts)
    head = layouts[0].head
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
        f"{name}={recorded.get(name)!r} in the corpus, {value!r} given"
        for name, value in arguments.items()
        if recorded.get(name) != value
    )
