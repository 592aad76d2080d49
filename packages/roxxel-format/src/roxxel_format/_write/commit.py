"""Read and replace the manifest of a corpus, and remove files that it does not list.

Writers of a corpus exclude each other by locks on files beside the manifest.

A commit makes shards a corpus (docs/format.md, section 10). `commit` holds the commit
lock while it compares and replaces the manifest. If two writes began from the same
manifest, the first commits, and `commit` returns False to the second.

A name does not make a file part of a corpus: `wiki_20240101.rox` may be a corpus of one
file. So an unlisted file is removed only in three cases: it is a draft, its metadata
record that it was written as one of several shards, or it is a column of such a shard.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command
from roxxel_store.files import (
    draft_path,
    drafted_name,
    names_in,
    read_file,
    sync_folder,
)
from roxxel_store.locks import held, is_locked
from roxxel_store.output import replace_file
from roxxel_store.records import RecordError, parse_value

from roxxel_format._read.shard import ends_of, open_shard
from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import (
    MAX_MANIFEST_SIZE,
    Manifest,
    Version,
    bins_of,
    is_file_name,
    parse_manifest,
)
from roxxel_format._spec.records import PLAN
from roxxel_format._spec.tables import as_table
from roxxel_format._store.corpus_name import SUFFIX, own_names, shards_of
from roxxel_format.errors import (
    ManifestError,
    NotAShardError,
    ShardError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName


@dataclass(frozen=True, slots=True)
class Committed:
    """A manifest and its bytes.

    If the file does not exist, `data` is None and `manifest` has no versions.
    """

    manifest: Manifest
    data: bytes | None

    @property
    def is_begun(self) -> bool:
        """Whether a first write is in progress, or was interrupted."""
        return self.data == BEGUN.data


BEGUN = Committed(Manifest(), Manifest().pack())
"""The manifest that a first write commits before its first shard."""


def read_committed(name: CorpusName, *, replaces: bool = False) -> Committed:
    """Read the current manifest of a corpus.

    If the write `replaces` the corpus, a damaged manifest counts as a manifest without
    versions. A file with other JSON always raises, because it may be another program's
    `manifest.json`.
    """
    data = _read(_manifest_path(name))
    if data is None:
        return Committed(Manifest(), None)
    try:
        return Committed(parse_manifest(data, str(name.manifest)), data)
    except ManifestError:
        if replaces and not is_other_json(data):
            return Committed(Manifest(), data)
        raise


def commit(name: CorpusName, found: Committed, manifest: Manifest) -> bool:
    """Replace the manifest; return False if another write committed since `found`.

    The caller must first flush every file that `manifest` lists to the disk; `commit`
    flushes the manifest. After an OSError, the file holds the old or the new manifest;
    call `read_committed` to find out which.
    """
    path = _manifest_path(name)
    data = manifest.pack()
    if len(data) > MAX_MANIFEST_SIZE:
        raise ValueError(
            f"{path}: the manifest of {len(manifest.shards)} shards would have "
            f"{len(data)} bytes, but readers accept {MAX_MANIFEST_SIZE}; write fewer "
            "and larger shards (max_shard_bytes)"
        )
    with committing(name):
        if _read(path) != found.data:
            return False
        replace_file(path, data)
    return True


def check_listable(name: CorpusName, given: str) -> None:
    """Raise ValueError if no reader would accept a manifest that lists the shards."""
    if name.manifest is not None and not is_file_name(name.shard(0).name):
        raise ValueError(
            f"{given!r}: the manifest cannot list such names; use no dot at the "
            "beginning, and no backslash, colon or control character"
        )


def withdraw(name: CorpusName) -> None:
    """Remove the manifest if it has no versions."""
    path = _manifest_path(name)
    with committing(name):
        if _read(path) == BEGUN.data:
            path.unlink()
            sync_folder(path.parent)


def find_committed(name: CorpusName, *, replaces: bool = False) -> Committed:
    """Return the manifest that a write begins from.

    Raises ShardError if there is none, but a file with the name of a shard. If the
    write `replaces` the corpus, ignores such files and a damaged manifest.
    """
    found = read_committed(name, replaces=replaces)
    if found.data is None and not replaces:
        try:
            _check_no_shards(name)
        except ShardError:
            # The shard may be of a write that has begun and listed it meanwhile.
            found = read_committed(name)
            if found.data is None:
                raise
    return found


def existing_manifest(name: CorpusName) -> Manifest | None:
    """Return the manifest of a corpus; for one file, make it from the file.

    None if no corpus exists. A manifest without versions means that a write is in
    progress or was interrupted.
    """
    if name.manifest is not None:
        found = read_committed(name)
        return None if found.data is None else found.manifest
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


def unfinished_job(
    name: CorpusName, plan: bytes | None, manifest: Manifest, folder: str
) -> str | None:
    """Return the job (digest) of a plan, unless the manifest lists shards of this job.

    None without a plan. Raises ManifestError for a damaged plan: the files of its job
    are then unknown, so no file of a unit may be taken for a leftover.
    """
    if plan is None:
        return None
    job = job_of_plan(name, plan, folder)
    return None if job in map(name.job_of, manifest.shards.names) else job


def job_of_plan(name: CorpusName, plan: bytes, folder: str) -> str:
    """Return the job (digest) of a plan; raise ManifestError for a damaged plan."""
    job: str = PLAN.parse(plan, folder + name.plan.name)["job"]
    return job


def leftovers(name: CorpusName, *, abandon: bool = False) -> list[Path]:
    """Return the files of a corpus that its manifest does not list.

    The files are drafts, verified shards and their columns, records of units, and a
    manifest without versions. Some may belong to writes in progress. With `abandon`,
    the files of an uncommitted preparation are included.
    """
    names = names_in(name.folder)
    if name.manifest is None:
        left = [each for each in names if drafted_name(each) == name.single.name]
        return [name.folder / each for each in (*left, *tokenizers_left(name))]
    found = read_committed(name)
    own = set(own_names(name))
    of_units = {n for n in names if _is_of_units(name, drafted_name(n) or n)}
    own |= {n for n in names if (drafted_name(n) or n) == name.manifest.name}
    if found.data is None:  # Without a manifest, nothing says whose the shards are.
        own = {each for each in own if drafted_name(each) is not None}
    listed = found.manifest.file_names()
    folder = f"{name.folder}/"
    job = None
    if not abandon:
        job = unfinished_job(name, _read(name.plan), found.manifest, folder)
    if found.manifest.versions or job:
        listed.add(name.manifest.name)
    own |= of_units
    tokenizers = {*filter(name.keeps_tokenizer, names)}
    if job is None:
        own |= tokenizers
    else:  # The units of the job need their tokenizer.
        own -= {n for n in own if n == name.plan.name or name.job_of(n) == job}
    manifest = name.manifest.name

    def is_ours(each: str) -> bool:
        if drafted_name(each) is not None or each == manifest:
            return True
        if each in of_units or each in tokenizers:
            return True
        return any(
            shard in listed or _is_of_several(name.folder / shard)
            for shard in shards_of(each)
        )

    return [name.folder / each for each in sorted(own - listed) if is_ours(each)]


def tokenizers_left(name: CorpusName) -> list[str]:
    """Return the names of files that keep a tokenizer for no file of this name.

    `name` is that of a corpus of one file, whose metadata name the tokenizer's file.
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


def has_files(name: CorpusName) -> bool:
    """Return whether a corpus exists, or any file of a write, such as a lock."""
    if name.manifest is None:
        return name.single.exists() or bool(leftovers(name))
    beside = name.manifest, name.write_lock
    return any(path.exists() for path in beside) or bool(own_names(name))


def remove_leftovers(name: CorpusName, *, abandon: bool = False) -> list[Path]:
    """Remove and return leftovers; raise BlockingIOError if a write is in progress.

    Raises ManifestError for a damaged plan, except with `abandon`. Also removes the
    lock files if there is no manifest. With `abandon`, also removes the files of a
    preparation that is not committed.
    """
    before, locks = leftovers(name, abandon=abandon), _idle_locks(name)
    if not before and not locks:
        return []
    lock = draft_path(name.single)  # `alone` creates this draft as a lock.
    with alone(name):
        found = leftovers(name, abandon=abandon)
        found = [each for each in found if each in before or each != lock]
        # A name such as `.wiki_20240101.rox.partial` may be the draft that the writer
        # of a corpus of one file has locked.
        found = [each for each in found if each == lock or not is_locked(each)]
        for each in columns_first(path.name for path in found):
            if name.folder / each != name.manifest:
                (name.folder / each).unlink()
        if name.manifest in found:
            withdraw(name)
        lock.unlink(missing_ok=True)
        for path in _idle_locks(name):
            path.unlink()
    return [*found, *locks]


def remove_idle_locks(name: CorpusName) -> None:
    """Remove the lock files unless there is a manifest or a write in progress."""
    if not _idle_locks(name):
        return
    with contextlib.suppress(OSError), alone(name):
        for path in _idle_locks(name):
            path.unlink()


def _idle_locks(name: CorpusName) -> list[Path]:
    """Return the lock files of a corpus without a manifest.

    A process that holds the lock `alone` may remove them. It removes the lock file of
    writes last, because other writes then create and lock a new file.
    """
    if name.manifest is None or name.manifest.exists():
        return []
    return [path for path in (name.commit_lock, name.write_lock) if path.exists()]


def _is_of_units(name: CorpusName, file_name: str) -> bool:
    """Return whether a file is the plan of a preparation or the record of a unit."""
    is_record = file_name.startswith(".") and name.job_of(file_name) is not None
    return is_record or file_name == name.plan.name


def columns_first(names: Iterable[str]) -> list[str]:
    """Sort names, columns first: without its shard, `clean` cannot verify a column."""
    return sorted(names, key=lambda each: (not each.endswith(".bin"), each))


def _is_of_several(path: Path) -> bool:
    """Return whether a file is a shard that a write made as one of several.

    The metadata of a corpus of one file record the arguments of its write. Those of a
    user's `ShardWriter` do not say which release wrote them.
    """
    try:
        metadata = open_shard(str(path)).metadata()
    except (OSError, ShardError):
        return False
    is_written = str(metadata.get("created_by")).startswith("roxxel-format ")
    return is_written and "arguments" not in metadata


def _check_no_shards(name: CorpusName) -> None:
    """Raise ShardError for a file that has the name of a shard, without a manifest."""
    for each in own_names(name):
        if drafted_name(each) is not None or not each.endswith(SUFFIX):
            continue
        path = name.folder / each
        command = roxxel_command(f'format adopt "{name.pattern}"')
        raise ShardError(
            f"{path}: has the name of a shard of {name.pattern}, but no manifest lists "
            f"it; run `{command}` if it belongs to this "
            "corpus, else move it, or write under another name"
        )


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


def _manifest_path(name: CorpusName) -> Path:
    assert name.manifest is not None, "a single file has no manifest"  # noqa: S101
    return name.manifest


def is_other_json(data: bytes) -> bool:
    """Return whether bytes are JSON, but neither a manifest nor a damaged one."""
    try:
        table = parse_value(data, "", "")
    except RecordError:
        return False
    return not (isinstance(table, dict) and "format" in table and "crc32" in table)


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, MAX_MANIFEST_SIZE, ShardError)
    except FileNotFoundError:
        return None


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
