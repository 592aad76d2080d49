"""Where a corpus is: on a disk or in a bucket, and how its manifest is committed there.

`roxxel_store.place` holds the files. They are added complete and under names that no
other write has, or that depend on their content. A commit then compares and replaces
the manifest: on a disk under a lock, in a bucket by one conditional put. So whatever
fails or is killed before the commit changes no corpus.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.client import bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.files import claim_name, make_folder
from roxxel_store.place import InBucket, OnDisk
from roxxel_store.swap import swap_object
from roxxel_store.urls import DEFAULT_TIMEOUT_S, check_writable, url_of

from roxxel_format._spec.manifest import MAX_MANIFEST_SIZE, Manifest, parse_manifest
from roxxel_format._spec.records import PLAN, DamagedRecordError
from roxxel_format._spec.tables import NewShards, ShardTable, unit_of
from roxxel_format._store.corpus_name import (
    SUFFIX,
    manifest_urls,
    name_in_bucket,
    name_to_write,
)
from roxxel_format._write.commit import (
    BEGUN,
    Committed,
    alone,
    check_listable,
    columns_first,
    commit,
    existing_manifest,
    find_committed,
    has_files,
    is_other_json,
    job_of_plan,
    leftovers,
    read_committed,
    remove_idle_locks,
    remove_leftovers,
    unfinished_job,
    withdraw,
    writing,
)
from roxxel_format._write.options import WriteSummary
from roxxel_format.errors import ManifestError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from roxxel_store.client import Version
    from roxxel_store.place import FilePlace

    from roxxel_format._store.corpus_name import CorpusName

_LEFTOVER_AGE_S = 7 * 86400.0
_IN_BUCKET = re.compile(r"_[0-9]{5,}_000(\D|$)")
"""Matches the names of shards that were written to a bucket or copied."""


class Place(ABC):
    """The files of one corpus.

    Attributes:
        what: The corpus, for messages: its pattern, or the URL that was given.
        name: The names of the files.
        files: The files.
    """

    what: str
    name: CorpusName
    files: FilePlace
    found = Manifest()
    """The manifest that `begin` returned last."""
    plan_kind = PLAN
    """The record of a plan, whose job `clean` keeps until it is committed."""
    is_uncertain = False
    """Whether a commit failed that may have taken effect."""

    @staticmethod
    def of(target: CorpusName | str) -> Place:
        """Return the place of a corpus: a path, a URL, or the names of its files."""
        return place_of(target, sharded=True)

    @property
    def is_one_file(self) -> bool:
        """Whether the corpus is one file, which has no manifest."""
        return self.name.manifest is None

    @property
    def folder(self) -> str:
        """The folder's path or URL, with a slash at the end."""
        return self.files.location

    @property
    def manifest(self) -> str:
        """Path or URL of the manifest."""
        assert self.name.manifest is not None  # noqa: S101 - checked before
        return self.folder + self.name.manifest.name

    @property
    def pattern(self) -> str:
        """Path or URL of the corpus."""
        return f"{self.folder}{self.name.prefix}*{self.name.suffix}"

    @property
    @abstractmethod
    def target(self) -> CorpusName | str:
        """What `of` takes in another process to return this place."""

    @abstractmethod
    def new_shards(self) -> Callable[[Path], tuple[Path, Path | None]]:
        """Return what names the new shards of one process in a folder.

        The second path is the draft of the shard, if a name is claimed by its draft.
        """

    @abstractmethod
    def enter(self, resources: contextlib.ExitStack) -> None:
        """Hold, in `resources`, what keeps `clean` from removing new shards."""

    @abstractmethod
    def existing(self) -> Manifest | None:
        """Return the manifest, or None if no corpus exists; changes nothing."""

    @abstractmethod
    def was_interrupted(self, *, replaces: bool) -> bool:
        """Return whether a first write has begun and not committed.

        Raises BlockingIOError if that write is in progress.
        """

    @abstractmethod
    def begin(self, *, replaces: bool) -> Committed:
        """Return the manifest to begin from."""

    @abstractmethod
    def undo_begin(self) -> None:
        """Remove the manifest that `begin` committed, if there is no other file."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""
        return self.files.read(name, MAX_MANIFEST_SIZE)

    def discard(self, names: Iterable[str]) -> None:
        """Delete files; files that cannot be deleted now stay."""
        self.files.delete(columns_first(names))

    @abstractmethod
    def commit(self, manifest: Manifest) -> bool:
        """Replace the manifest; False if another write committed since `begin`."""

    def discard_unlisted(self, names: Iterable[str]) -> None:
        """Delete files of a write that failed, except those that the corpus lists."""
        # A later `clean` removes files that cannot be removed now.
        with contextlib.suppress(OSError, ValueError):
            manifest = self.existing()
            listed = set[str]() if manifest is None else manifest.file_names()
            self.discard(set(names) - listed)

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Remove what earlier writes left, if this can be done now."""

    @abstractmethod
    def leftovers(self, *, abandon: bool = False) -> list[str]:
        """Return the files of interrupted writes; see `Roxxel.leftovers`.

        The files of an uncommitted preparation are included only with `abandon`.
        """

    @abstractmethod
    def clean(self, *, abandon: bool) -> list[str]:
        """Remove and return the leftovers; see `Roxxel.remove_leftovers`."""

    def planned_shards(self, manifest: Manifest) -> set[str]:
        """Return the shards of a manifest whose preparation left its plan.

        The program that committed them was killed before it removed the plan, or is
        about to. Raises ManifestError for a damaged plan.
        """
        plan = self.read(self.name.plan.name)
        if plan is None:
            return set()
        job = job_of_plan(self.name, plan, self.folder)
        return {each for each in manifest.shards.names if self.name.job_of(each) == job}

    def listed(self, manifest: Manifest, job: str | None = None) -> NewShards:
        """Return the shards that a manifest lists: all, or those of one job."""
        chosen = [
            at
            for at, name in enumerate(manifest.shards.names)
            if job in {None, self.name.job_of(name)}
        ]
        columns = map(list, zip(*map(manifest.shards.row, chosen), strict=True))
        return NewShards(
            ShardTable(*columns),
            dtype=manifest.dtype_name,
            bins=None if manifest.bins is None else manifest.bins.of(chosen),
        )

    def summary(
        self, new: NewShards, started: float, *, kept: bool = False
    ) -> WriteSummary:
        """Return the summary of shards at this place."""
        (fingerprint,) = new.shards.fingerprints([len(new)])
        return WriteSummary(
            paths=tuple(self.folder + each for each in new.shards.names),
            num_documents=new.num_documents,
            num_tokens=new.num_tokens,
            num_bytes=sum(new.shards.num_bytes),
            dtype=str(new.dtype),
            fingerprint=fingerprint,
            kept=kept,
            duration_s=time.perf_counter() - started,
            sync_s=new.sync_s,
            num_dropped=new.num_dropped,
            unit=unit_of(new.bins),
            num_padding=0 if new.bins is None else new.bins.num_padding,
            num_cut=0 if new.bins is None else new.bins.num_cut,
        )

    def check_present(self, sizes: Mapping[str, int]) -> None:
        """Raise FileNotFoundError unless the files have these sizes.

        Called just before a commit: a `clean` may have deleted old files meanwhile.
        """
        there = self.files.sizes(sizes)
        for name, size in sizes.items():
            if there.get(name) != size:
                raise FileNotFoundError(
                    f"{self.folder}{name}: was deleted or replaced before the commit, "
                    "so nothing was committed; write or copy again"
                )


class FolderPlace(Place):
    """A folder on a disk."""

    def __init__(self, name: CorpusName, given: str | None = None) -> None:
        check_listable(name, name.pattern)
        self.name = name
        self._given = given or name.pattern
        self.what = name.pattern
        self.files = OnDisk(name.folder, name.commit_lock, ShardError)
        self._found = Committed(Manifest(), None)

    @property
    def target(self) -> CorpusName:
        """The names of the files."""
        return self.name

    def new_shards(self) -> Callable[[Path], tuple[Path, Path]]:
        """Return the free numbers of the corpus, each claimed by a shard's draft."""
        # The number of a listed shard is not free, even if its file is gone. Other
        # files do not count here: `wiki_20240101.rox` may be a corpus of one file, and
        # a shard `wiki_20240102.rox` would look like a second such corpus. The numbers
        # of existing files are skipped one by one.
        listed = set(self.found.shards.names)
        known = map(self.name.number, reversed(self.found.shards.names))
        numbers = count(next((n + 1 for n in known if n is not None), 0))

        def new_path(folder: Path) -> tuple[Path, Path]:
            while True:
                path = folder / self.name.shard(next(numbers)).name
                draft = None if path.name in listed else claim_name(path)
                if draft is not None:
                    return path, draft

        return new_path

    def enter(self, resources: contextlib.ExitStack) -> None:
        """Create the folder, and hold the lock of writes."""
        make_folder(self.name.folder)
        resources.callback(remove_idle_locks, self.name)
        resources.enter_context(writing(self.name))

    def existing(self) -> Manifest | None:
        """Return the manifest, or None if no corpus exists; needs no lock."""
        return existing_manifest(self.name)

    def was_interrupted(self, *, replaces: bool) -> bool:
        """Return whether a first write has begun and not committed."""
        if not read_committed(self.name, replaces=replaces).is_begun:
            return False
        with alone(self.name):
            return True

    def begin(self, *, replaces: bool) -> Committed:
        """Return the manifest to begin from; commits one if there is none."""
        self._found = find_committed(self.name, replaces=replaces)
        if self._found.data is None:
            # From now on, the shards in this folder are of this write.
            is_first = commit(self.name, self._found, Manifest())
            self._found = BEGUN if is_first else read_committed(self.name)
        self.found = self._found.manifest
        return self._found

    def undo_begin(self) -> None:
        """Remove what `begin` committed: the manifest, if there is no shard.

        Another write may have found this manifest, and will commit to it: the manifest
        stays until no write is in progress.
        """
        # A later `clean` removes files that cannot be removed now.
        with contextlib.suppress(OSError, ShardError):
            if not read_committed(self.name).is_begun:
                return
            with alone(self.name):
                left = {*leftovers(self.name, abandon=True)} - {self.name.manifest}
                if all(self.name.keeps_tokenizer(path.name) for path in left):
                    self.files.delete(path.name for path in left)
                    withdraw(self.name)
            remove_idle_locks(self.name)

    def commit(self, manifest: Manifest) -> bool:
        """Replace the manifest; False if another write committed since `begin`."""
        return commit(self.name, self._found, manifest)

    def remove_leftovers(self) -> None:
        """Remove what earlier writes left, if this can be done now."""
        with contextlib.suppress(OSError, ShardError):
            remove_leftovers(self.name)

    def leftovers(self, *, abandon: bool = False) -> list[str]:
        """Return the files of interrupted writes, and of writes in progress."""
        return [str(path) for path in leftovers(self.name, abandon=abandon)]

    def clean(self, *, abandon: bool) -> list[str]:
        """Remove and return the leftovers; raises while a write is in progress."""
        if not has_files(self.name):
            raise FileNotFoundError(f"{self._given}: no such corpus; check the path")
        return [str(path) for path in remove_leftovers(self.name, abandon=abandon)]


class BucketPlace(Place):
    """A folder in a bucket."""

    def __init__(self, url: str, timeout_s: float) -> None:
        check_writable(url)
        self.what = url
        self._timeout_s = timeout_s
        self._version: Version | None = None
        if not url.endswith(SUFFIX) and self._is_plain(url):
            url = f"{url}_*{SUFFIX}"
        folder, self.name = name_in_bucket(url)
        check_listable(self.name, url)
        self.files = files = InBucket(folder, timeout_s)
        self._bucket = files.bucket

    def _is_plain(self, url: str) -> bool:
        """Return whether the URL `t` means the shards `t_*.rox`, as for a reader."""
        of_folder, of_shards = manifest_urls(url)
        return not self._exists(of_folder) and self._exists(of_shards)

    def _exists(self, url: str) -> bool:
        try:
            bucket, name = bucket_of(url, self._timeout_s)
            bucket.get(name, (0, 1))
        except FileNotFoundError:
            return False
        return True

    @property
    def target(self) -> str:
        """The URL of the pattern."""
        return self.pattern

    def new_shards(self) -> Callable[[Path], tuple[Path, None]]:
        """Return names with a digest that no other write has."""
        digest, pieces = secrets.token_hex(6), count()

        def new_path(folder: Path) -> tuple[Path, None]:
            return folder / self.name.unit_shard(digest, next(pieces), 0).name, None

        return new_path

    def enter(self, resources: contextlib.ExitStack) -> None:
        """Do nothing: a bucket has no locks, and `clean` goes by age."""

    def existing(self) -> Manifest | None:
        """Return the manifest, or None if no corpus exists."""
        data = self.read(self._manifest_name)
        return None if data is None else parse_manifest(data, self.manifest)

    def was_interrupted(self, *, replaces: bool) -> bool:
        """Return False: in a bucket, a write commits nothing before its end."""
        del replaces
        return False

    def begin(self, *, replaces: bool) -> Committed:
        """Return the manifest to begin from."""
        found = self._begun(replaces=replaces)
        self.found = found.manifest
        return found

    def _begun(self, *, replaces: bool) -> Committed:
        self._version = None
        try:
            found = self._bucket.get(self._manifest_name, most_bytes=MAX_MANIFEST_SIZE)
        except FileNotFoundError:
            return Committed(Manifest(), None)
        data, self._version = found.data, found.version
        try:
            return Committed(parse_manifest(data, self.manifest), data)
        except ManifestError:
            if replaces and not is_other_json(data):
                return Committed(Manifest(), data)
            raise

    def undo_begin(self) -> None:
        """Do nothing: `begin` puts no object."""

    def commit(self, manifest: Manifest) -> bool:
        """Put the manifest, unless another write committed since `begin`."""
        data = manifest.pack()
        try:
            new = swap_object(self._bucket, self._manifest_name, data, self._version)
        except FileNotFoundError:
            return False  # another program has deleted it
        except BucketError as error:
            if error.is_refused:
                raise
            raise BucketError(
                f"{error}; this commit may have taken effect: compare the corpus with "
                f"`{roxxel_command('format info')}` before you write again, because "
                "an append would add the documents twice"
            ) from None
        return new is not None

    def leftovers(self, *, abandon: bool = False) -> list[str]:
        """Return the URLs of unlisted files that are at least a week old.

        They are shards, columns and records of units that the manifest does not list.
        Younger files may belong to a write or a copy in progress, because a bucket has
        no locks. The files of an uncommitted preparation are included only with
        `abandon`, whatever their age.
        """
        committed = self.begin(replaces=False)
        plan = self.read(self.name.plan.name)
        job, is_unknown = None, False
        try:
            job = unfinished_job(self.name, plan, committed.manifest, self.folder)
        except DamagedRecordError:
            if not abandon:
                raise
            is_unknown = True  # Gives up every job.
        if committed.data is None and not ((job or is_unknown) and abandon):
            return []  # Keep the shards: perhaps only the manifest is lost.
        listed = committed.manifest.file_names()
        found: list[str] = []
        for name, each in self._bucket.names().objects.items():
            is_plan = name == self.name.plan.name
            of_job = self.name.job_of(name)
            is_shared = is_plan or self.name.keeps_tokenizer(name)
            if (job or is_unknown) and (
                is_shared or (of_job and job in {None, of_job})
            ):
                is_left = abandon
            else:
                is_shard = self.name.is_own(name) and _IN_BUCKET.search(name)
                is_left = bool(is_shared or is_shard or of_job)
                is_left &= committed.data is not None and each.age_s > _LEFTOVER_AGE_S
            if is_left and name not in listed:
                found.append(self._bucket.url_of(name))
        return sorted(found)

    def clean(self, *, abandon: bool) -> list[str]:
        """Remove and return the leftovers."""
        found = self.leftovers(abandon=abandon)
        # A command that is repeated may have committed them since they were listed.
        self.discard_unlisted(url.removeprefix(self.folder) for url in found)
        return found

    def remove_leftovers(self) -> None:
        """Do nothing: `clean` goes by age."""

    def discard_unlisted(self, names: Iterable[str]) -> None:
        """Delete objects of a write that failed, except those that the corpus lists."""
        # A put that failed may still take effect. Then `clean` deletes the shards
        # later, if the corpus does not list them.
        if not self.is_uncertain:
            super().discard_unlisted(names)

    @property
    def _manifest_name(self) -> str:
        return self.manifest.removeprefix(self.folder)


def place_of(
    target: CorpusName | str | tuple[str, ...],
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    sharded: bool = False,
) -> FolderPlace | BucketPlace:
    """Return the place of a corpus: an absolute path, a URL, or its names.

    `sharded` is whether a write may make several shards.
    """
    url = url_of(target) if isinstance(target, str) else None
    if url is not None:
        return BucketPlace(url, timeout_s)
    if not isinstance(target, (str, tuple)):
        return FolderPlace(target)
    name = name_to_write(target, sharded=sharded)
    return FolderPlace(name, target if isinstance(target, str) else None)
