"""Where the files of a corpus are, and how its manifest is replaced there.

`roxxel_store.place` holds the files, on a disk or in a bucket. Files are added complete
and under names that no other write has, so nothing changes for a reader. A commit then
swaps the manifest, if it is still the one from which this write began. So a write that
fails or is killed before its commit changes no corpus. Of two writes that began from
one manifest, the second learns that it has lost.
"""

from __future__ import annotations

import contextlib
import secrets
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.client import bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.files import draft_path, drafted_name
from roxxel_store.locks import held
from roxxel_store.place import InBucket, OnDisk, SmallFile
from roxxel_store.records import RecordError, RecordKind, parse_value
from roxxel_store.urls import DEFAULT_TIMEOUT_S, check_writable

from roxxel_format._corpus_name import (
    SUFFIX,
    CorpusName,
    manifest_urls,
    name_in_bucket,
    named_to_write,
    quoted,
    shards_of,
)
from roxxel_format._read.contents import file_contents
from roxxel_format._spec.manifest import (
    Manifest,
    NewShards,
    ShardTable,
    unit_of,
)
from roxxel_format._spec.manifest_file import (
    MAX_MANIFEST_SIZE,
    extended,
    is_file_name,
    pack_manifest,
    parse_end,
    parse_manifest,
)
from roxxel_format._write.summary import WriteSummary
from roxxel_format.errors import ManifestError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_store.place import FilePlace

    from roxxel_format._corpus_name import Filepath


class DamagedPlanError(ManifestError):
    """A plan does not match its checksum."""


class _Files:
    """The files of one corpus.

    Attributes:
        name: The names of the files.
        files: The files.
        what: The corpus, for messages: its pattern, or the URL that was given.
    """

    def __init__(self, name: CorpusName, files: FilePlace, given: str) -> None:
        self.name, self.files, self.what = name, files, given

    @property
    def folder(self) -> str:
        """The folder's path or URL, with a slash at the end."""
        return self.files.location

    def listed(self, manifest: Manifest, job: str | None = None) -> NewShards:
        """Return the shards that a manifest lists: all, or only those of one job."""
        chosen = [
            at
            for at, name in enumerate(manifest.shards.names)
            if job in {None, self.name.job_of(name)}
        ]
        fields = map(list, zip(*map(manifest.shards.row, chosen), strict=True))
        return NewShards(
            ShardTable(*fields),
            dtype=manifest.dtype_name,
            bins=None if manifest.bins is None else manifest.bins.of(chosen),
        )

    def summary(
        self,
        new: NewShards,
        *,
        fingerprint: str | None = None,
        kept: bool = False,
    ) -> WriteSummary:
        """Return the summary of shards at this place.

        The fingerprint is that of the new shards alone, unless it is given.
        """
        return WriteSummary(
            paths=tuple(self.folder + each for each in new.shards.names),
            num_documents=new.num_documents,
            num_tokens=new.num_tokens,
            num_bytes=sum(new.shards.num_bytes),
            dtype=str(new.dtype),
            fingerprint=fingerprint or new.shards.fingerprint(),
            kept=kept,
            unit=unit_of(new.bins),
            num_padding=0 if new.bins is None else new.bins.num_padding,
            num_cut=0 if new.bins is None else new.bins.num_cut,
        )


class Place(_Files):
    """The files of a corpus that has a manifest.

    Args:
        name: The names of the files.
        files: The files.
        target: The argument of `of` that returns this place in another process.
        given: The corpus as the caller gave it, for messages.

    Attributes:
        target: The argument of `of` that returns this place in another process.
        end: The end of the manifest that `begin` read last, all that an append needs;
            without versions if there is no corpus.
        is_uncertain: Whether a failed commit may have taken effect.
    """

    may_grow = True

    def __init__(
        self, name: CorpusName, files: FilePlace, target: CorpusName | str, given: str
    ) -> None:
        super().__init__(name, files, given)
        _check_listable(name, given)
        self.target = target
        self.end = Manifest()
        self.is_uncertain = False
        self._data: bytes | None = None
        self._before = SmallFile(None)

    @staticmethod
    @cache
    def plan_kind() -> RecordKind:
        """Return the kind of record of the plan of an uncommitted preparation.

        docs/format.md, section 10.5, describes it. `clean` keeps the plan's job until
        it is committed.
        """
        # Not made at import: to look for the command that it names would be a quarter
        # of the import of this package.
        return RecordKind(
            "plan",
            version=1,
            remedy=(
                "delete this file and run the same command again, which keeps the "
                "finished units"
            ),
            error=DamagedPlanError,
            other_remedy=(
                "finish the preparation with the release that began it, or give it up "
                f"with `{roxxel_command('format clean --abandon')}`"
            ),
            other_error=ManifestError,
            mark="roxxel plan",
        )

    @staticmethod
    def of(target: CorpusName | str) -> Place:
        """Return the place of a corpus: a path, a URL, or the names of its files."""
        return place_of(target, sharded=True).as_place("it has no manifest")

    @staticmethod
    def existing_at(filepath: str) -> Manifest | None:
        """Return the manifest of the corpus at a path or URL; None if there is none."""
        return place_of(filepath, sharded=True).existing()

    def as_place(self, why: str) -> Place:
        """Return this place; `OneFile.as_place` raises."""
        del why
        return self

    @property
    def manifest(self) -> str:
        """Path or URL of the manifest."""
        return self.folder + self._manifest_name

    @property
    def pattern(self) -> str:
        """Path or URL of the corpus."""
        return f"{self.folder}{self.name.prefix}*{self.name.suffix}"

    @property
    def _manifest_name(self) -> str:
        assert self.name.manifest is not None, "a single file has no manifest"  # noqa: S101
        return self.name.manifest.name

    def new_shards(
        self, digest: str | None = None, unit: int = 0
    ) -> Callable[[Path], Path]:
        """Return a function that names the new shards of a write's unit, in a folder.

        Without a digest, no other write has these names, so there is no need to check
        whether one is free.
        """
        write, pieces = digest or secrets.token_hex(6), count()

        def new_path(folder: Path) -> Path:
            return folder / self.name.unit_shard(write, unit, next(pieces)).name

        return new_path

    def enter(self, resources: contextlib.ExitStack) -> None:
        """Hold, in `resources`, the lock that keeps `clean` from new shards."""
        resources.enter_context(self.files.writing())

    def existing(self) -> Manifest | None:
        """Return the manifest, or None if no corpus exists; needs no lock."""
        data = self.read(self._manifest_name)
        return None if data is None else parse_manifest(data, self.manifest)

    def begin(self, *, replaces: bool = False) -> None:
        """Read the manifest to begin from, if there is one.

        If the write `replaces` the corpus, a damaged manifest counts as none. A file
        with other JSON always raises, because it may be another program's
        `manifest.json`.
        """
        self._before = self.files.get(self._manifest_name)
        self.end, self._data = Manifest(), self._before.data
        data = self._data
        if data is None:
            return
        try:
            if replaces:  # It needs the names of all files.
                parse_manifest(data, self.manifest)
            self.end = parse_end(data, self.manifest)
        except ManifestError:
            if not replaces or _is_other_json(data):
                raise
            self._data = None

    @property
    def found(self) -> Manifest:
        """The manifest that `begin` read last; without versions if there is none."""
        if self._data is None:
            return Manifest()
        return parse_manifest(self._data, self.manifest)

    def lists(self, texts: Iterable[str]) -> bool:
        """Return whether the manifest that `begin` read last has all of some texts.

        This is quicker than parsing its lists.
        """
        data = self._data or b""
        return all(quoted(each) in data for each in texts)

    def commit(self, manifest: Manifest, *, appends: bool = False) -> bool:
        """Replace the manifest; False if another write committed since `begin`.

        Every file that the manifest lists must be flushed already. After an OSError,
        the file holds the old or the new manifest.

        Args:
            manifest: The new manifest. With `appends`, its shards and versions follow
                the existing ones.
            appends: Whether to keep the existing shards and versions.
        """
        if appends and self._data is not None:
            data = extended(self._data, self.end, manifest)
        else:
            data = pack_manifest(manifest)
        if len(data) > MAX_MANIFEST_SIZE:
            raise ValueError(
                f"{self.manifest}: the manifest would have {len(data)} bytes, but "
                f"readers accept {MAX_MANIFEST_SIZE}; write fewer and larger shards "
                "(max_shard_bytes), or merge them (`compact`)"
            )
        self.is_uncertain = self.files.may_act_late
        try:
            is_swapped = self.files.swap(self._manifest_name, data, self._before)
        except OSError as error:
            in_bucket = isinstance(error, BucketError)
            # On a disk, the new name is there even if the folder cannot be flushed.
            if (
                error.is_refused
                if in_bucket
                else self.read(self._manifest_name) != data
            ):
                raise
            what = str(error) if in_bucket else f"{self.manifest}: {error.strerror}"
            raise type(error)(
                f"{what}; this commit may have taken effect: compare the corpus with "
                f"`{roxxel_command('format info')}` before you write again, because "
                "an append would add the documents twice"
            ) from None
        self.is_uncertain = False
        if is_swapped:
            self.files.note(is_committed=True)
        return is_swapped

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is no such file."""
        return self.files.read(name, MAX_MANIFEST_SIZE)

    def discard(self, names: Iterable[str]) -> OSError | None:
        """Delete files; those that cannot be deleted now stay: return the first error.

        Only a command that cleans tells it, because `clean` finds the others later.
        """
        # Columns first: without its shard, nobody knows whose a column is.
        order = sorted(names, key=lambda each: not each.endswith(".bin"))
        return self.files.delete(order)

    def discard_unlisted(self, names: Iterable[str]) -> None:
        """Delete files of a write that failed, except those that the corpus lists."""
        # A put that failed may still take effect. Then `clean` deletes the shards
        # later, if the corpus does not list them, as it deletes those that cannot be
        # deleted now.
        if self.is_uncertain:
            return
        with contextlib.suppress(OSError, ValueError):
            self.discard(set(names) - self._listed_now())

    def check_no_bare_shards(self) -> None:
        """Raise ShardError if shards are here that no interrupted write can have left.

        Somebody has copied them without their manifest, made them with a `ShardWriter`,
        or lost the manifest of a corpus. A write would take them for leftovers.
        """
        if self.files.may_be_interrupted() or self.has_manifest():
            return
        bare = [each for each in self.files.sizes() if self.name.is_own(each)]
        if not bare:
            self.files.note(is_committed=False)
            return
        # Another first write may have begun during the listing.
        if self.files.may_be_interrupted() or self.has_manifest():
            return
        command = roxxel_command(f'format verify "{self.pattern}" --adopt')
        raise ShardError(
            f"{self.folder}{bare[0]}: has the name of a shard of {self.pattern}, but "
            f"no manifest lists it; run `{command}` if it belongs to this corpus, else "
            "move it, or write under another name"
        )

    def _listed_now(self) -> set[str]:
        """Return the names of all files that the corpus, if there is one, lists."""
        return (self.existing() or Manifest()).file_names()

    def has_manifest(self) -> bool:
        """Return whether there is a manifest, even a damaged one."""
        return self.read(self._manifest_name) is not None

    def remove_leftovers(self) -> None:
        """Remove what earlier writes left on a disk, unless a write is in progress.

        In a bucket only `clean` does this: there, leftovers look like the shards of a
        corpus whose manifest is lost.
        """
        if self.files.may_act_late:
            return
        with contextlib.suppress(OSError, ShardError):
            self._remove_leftovers(abandon=False)

    def leftovers(self, *, abandon: bool = False) -> list[str]:
        """Return the files of interrupted writes; see `Roxxel.leftovers`.

        The files of an uncommitted preparation are included only with `abandon`.
        """
        return [self.folder + each for each in self._left(abandon=abandon)]

    def clean(self, *, abandon: bool) -> list[str]:
        """Remove and return the leftovers; see `Roxxel.remove_leftovers`."""
        removed = self._remove_leftovers(abandon=abandon)
        if not removed and not self._has_files():
            raise FileNotFoundError(f"{self.what}: no such corpus; check the path")
        return removed

    def _remove_leftovers(self, *, abandon: bool) -> list[str]:
        found = self._left(abandon=abandon)
        if not found:
            return []
        busy = f"{self.pattern}: a write of this corpus is in progress; wait for it"
        with self.files.alone(busy) as is_alone:
            if is_alone:  # The write that made the files may have committed them since.
                found = self._left(abandon=abandon)
            else:  # A repeated command may have done so too. Listing again costs more.
                listed = self._listed_now()
                found = [each for each in found if each not in listed]
            error = self.discard(found)
        if error is not None:
            raise error
        return [self.folder + each for each in found]

    def _has_files(self) -> bool:
        """Return whether a corpus exists, or any file of a write, such as a lock."""
        sizes = self.files.sizes()
        beside = {self._manifest_name, self.name.write_lock.name}
        return not beside.isdisjoint(sizes) or any(map(self.name.is_own, sizes))

    def _left(self, *, abandon: bool) -> list[str]:
        """Return the names of files that the corpus does not list.

        They are drafts, shards, column files, tokenizers, and the plan and the records
        of a preparation. Without a manifest, only drafts are leftovers, because perhaps
        only the manifest is lost; `abandon` gives up the rest too.
        """
        name, manifest = self.name, self.existing()
        listed = set[str]() if manifest is None else manifest.file_names()
        job = self._open_job(manifest, abandon=abandon)
        settled = self.files.settled()
        found: list[str] = []
        for each in sorted(settled.keys() - listed - {self._manifest_name}):
            file = drafted_name(each) or each
            is_draft, of_job = file != each, name.job_of(file)
            is_shared = file == name.plan.name or name.keeps_tokenizer(file)
            if job is not None and (is_shared or (of_job and job in {"", of_job})):
                is_left = abandon
            elif of_job or is_shared or listed.intersection(shards_of(file)):
                given_up = manifest is not None or abandon or is_draft
                is_left = given_up and settled[each]
            else:
                is_left = file == self._manifest_name
            if is_left:
                found.append(each)
        return found

    def _open_job(self, manifest: Manifest | None, *, abandon: bool) -> str | None:
        """Return the job of a plan that is not committed; None without such a plan.

        The job of a damaged plan is unknown: with `abandon`, which gives up everything,
        return "". Otherwise raise DamagedPlanError, because no unit's file is
        certainly a leftover.
        """
        plan = self.read(self.name.plan.name)
        if plan is None:
            return None
        try:
            job = self._job_of(plan)
        except DamagedPlanError:
            if not abandon:
                raise
            return ""
        shards = () if manifest is None else manifest.shards.names
        return None if job in map(self.name.job_of, shards) else job

    def _job_of(self, plan: bytes) -> str:
        """Return the job (digest) of a plan; raise ManifestError for a damaged plan."""
        table = self.plan_kind().parse(plan, self.folder + self.name.plan.name)
        job: str = table["job"]
        return job

    def planned_shards(self, manifest: Manifest) -> set[str]:
        """Return the shards of a manifest whose preparation left its plan.

        The program that committed them is about to remove the plan, or was killed
        before that. Raises ManifestError for a damaged plan.
        """
        plan = self.read(self.name.plan.name)
        if plan is None:
            return set()
        job = self._job_of(plan)
        return {each for each in manifest.shards.names if self.name.job_of(each) == job}

    def check_present(self, sizes: Mapping[str, int]) -> None:
        """Raise FileNotFoundError unless the files have these sizes.

        This is called just before a commit, because a `clean` may have deleted old
        files meanwhile.
        """
        there = self.files.sizes(sizes)
        for name, size in sizes.items():
            if there.get(name) != size:
                raise FileNotFoundError(
                    f"{self.folder}{name}: was deleted or replaced before the commit, "
                    "so nothing was committed; write or copy again"
                )


class OneFile(_Files):
    """The file of a corpus of one file on a disk, which needs no manifest.

    It appears by the rename of its draft, which its writer has locked. So there is one
    writer at a time, and nobody takes a living writer's draft for a leftover.

    Attributes:
        path: The file.
        draft: Its draft.
    """

    may_grow = False

    def __init__(self, name: CorpusName, files: OnDisk) -> None:
        super().__init__(name, files, name.pattern)
        self.path, self.draft = name.single, draft_path(name.single)

    def as_place(self, why: str) -> Place:
        """Raise ValueError: one file has no manifest. `why` follows the word "so"."""
        raise ValueError(
            f"{self.path}: is one file, so {why}; use a folder, or a pattern such as "
            f'"{self.name.prefix}_*{self.name.suffix}"'
        )

    def existing(self) -> Manifest | None:
        """Return a manifest of the file; None if there is none.

        Raises:
            NotAShardError: The file is something else.
        """
        if not self.path.exists():
            return None
        return file_contents(str(self.path)).manifest

    def writing(self) -> AbstractContextManager[None]:
        """Hold the lock of the draft, which is made if it does not exist.

        Raises:
            BlockingIOError: Another program writes the file.
        """
        busy = f"{self.path}: a write of this corpus is in progress; wait for it"
        return held(self.draft, busy=busy)

    def tokenizers_left(self) -> list[str]:
        """Return the names of kept tokenizers that the file does not use."""
        try:
            manifest = self.existing()
        except ShardError:
            return []
        used = {} if manifest is None else manifest.tokenizer_files()
        own = filter(self.name.keeps_tokenizer, self.files.sizes())
        return [each for each in own if each not in used]

    def leftovers(self, *, abandon: bool = False) -> list[str]:
        """Return the drafts of the file; a living writer may use one of them."""
        del abandon  # One file is prepared without a plan.
        return [self.folder + each for each in self._left()]

    def remove_leftovers(self) -> None:
        """Remove what earlier writes left, unless a write is in progress."""
        with contextlib.suppress(OSError, ShardError):
            self._remove_leftovers()

    def clean(self, *, abandon: bool) -> list[str]:
        """Remove and return leftovers; raise BlockingIOError while a write goes on."""
        del abandon
        removed = self._remove_leftovers()
        if not removed and not self.path.exists() and not self._left():
            raise FileNotFoundError(f"{self.what}: no such corpus; check the path")
        return removed

    def _left(self) -> list[str]:
        names = sorted(self.files.sizes())
        drafts = [each for each in names if drafted_name(each) == self.path.name]
        return [*drafts, *self.tokenizers_left()]

    def _remove_leftovers(self) -> list[str]:
        before = self._left()
        if not before:
            return []
        with self.writing():
            lock = self.draft.name
            # The lock itself is a draft: delete it, but report only an older one.
            found = [each for each in self._left() if each in before or each != lock]
            error = self.files.delete({*found, lock})
        if error is not None:
            raise error
        return [self.folder + each for each in found]


def place_of(
    target: CorpusName | Filepath,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    sharded: bool = False,
) -> Place | OneFile:
    """Return the place of a corpus: a path, a URL, or its names.

    `sharded` is whether a write may make several shards.
    """
    name = target
    if not isinstance(name, CorpusName):
        name = named_to_write(name, sharded=sharded)
    if isinstance(name, str):
        url = name
        check_writable(url)
        if not url.endswith(SUFFIX) and _is_plain(url, timeout_s):
            url = f"{url}_*{SUFFIX}"
        folder, name = name_in_bucket(url)
        files = InBucket(folder, timeout_s)
        return Place(name, files, f"{folder}{name.prefix}*{name.suffix}", url)
    files = OnDisk(name.folder, name.commit_lock, name.write_lock, ShardError)
    if name.manifest is None:
        return OneFile(name, files)
    return Place(name, files, name, name.pattern)


def _is_plain(url: str, timeout_s: float) -> bool:
    """Return whether the URL `t` means the shards `t_*.rox`, as for a reader."""
    of_folder, of_shards = manifest_urls(url)
    return not _exists(of_folder, timeout_s) and _exists(of_shards, timeout_s)


def _exists(url: str, timeout_s: float) -> bool:
    try:
        bucket, name = bucket_of(url, timeout_s)
        bucket.get(name, (0, 1))
    except FileNotFoundError:
        return False
    return True


def _check_listable(name: CorpusName, given: str) -> None:
    """Raise ValueError if no reader would accept a manifest that lists the shards."""
    if name.manifest is not None and not is_file_name(name.piece("", 0)):
        raise ValueError(
            f"{given!r}: the manifest cannot list such names; use no dot at the "
            "beginning, no backslash, colon or control character, and at most 200 bytes"
        )


def _is_other_json(data: bytes) -> bool:
    """Return whether bytes are JSON of another kind, not a manifest, damaged or not."""
    try:
        table = parse_value(data, "", "")
    except RecordError:
        return False
    return not (isinstance(table, dict) and "format" in table and "crc32" in table)
