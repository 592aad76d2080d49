"""One write of a corpus: checks, shards and commit, all of it or nothing.

A write changes no committed file before its commit. So a write that fails or is killed
leaves the old corpus unchanged. A write that keeps a corpus or appends to it is first
compared with the manifest. Where the corpus is, and who writes its shards, are
arguments: this process (`CorpusWrite.run`), tasks on many machines, or the units of a
preparation (`WriteJob`). All of them write by `write_shards`, and one `commit` serves
them: it compares and replaces the manifest, on a disk as in a bucket.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

from roxxel_store import roxxel_command
from roxxel_store.arguments import other_arguments
from roxxel_store.files import drafted_name, make_folder, replace_file
from roxxel_store.screen import counted, note
from roxxel_store.urls import DEFAULT_TIMEOUT_S

from roxxel_format._spec.kept_tokenizer import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    digest_of_tokenizer,
    pack_tokenizer,
)
from roxxel_format._spec.manifest import Manifest, NewShards
from roxxel_format._write.casting import NoDocumentsError
from roxxel_format._write.intake import (
    Encoded,
    intake_of,
    load_intake,
    load_tokenizer,
)
from roxxel_format._write.place import OneFile, place_of
from roxxel_format._write.recipe import Chat, Recipe, Side, as_given
from roxxel_format._write.series import ShardSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from roxxel_format._corpus_name import CorpusName, Filepath
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.place import Place
    from roxxel_format._write.series import Arrange
    from roxxel_format._write.summary import WriteSummary
    from roxxel_format._write.tokenizers import Tokenizer

# The number in the name of a task's shard is that of the task and 18 random digits.
_PER_TASK = 10**18

_WRITE_AGAIN = (
    "so this write was discarded; to replace the other, write again with "
    'exist="replace"'
)


class CorpusWrite:
    """One write of a corpus, from the checks of the arguments to the commit.

    The constructor checks the arguments and loads the tokenizer; it changes no file. In
    a `with` block, the write holds a lock that keeps `clean` from removing its shards.

    Args:
        filepath: The corpus: a folder, a pattern, or one file; or a URL.
        recipe: The arguments of the write.
        is_several: Whether several processes write shards of this corpus.
        says_ending: Whether to say how documents end if the tokenizer decides it. All
            corpora of a command end their documents alike, so only the first says it.
        tokenizer_files: If the documents are tokens of another corpus: the files of its
            tokenizer, whose record is in the recipe.
        timeout_s: Seconds after which a request to a bucket fails.

    Attributes:
        recipe: The arguments, with what the tokenizer, the corpus and the first
            document have decided so far.
        corpus: Where the corpus is: a corpus with a manifest, or one file.

    Example:
        >>> from roxxel_format.writing import Recipe
        >>> write = CorpusWrite("ids_*.rox", Recipe(exist="error"))
        >>> write.run([[5, 6, 7], [8]]).num_tokens
        4
    """

    def __init__(
        self,
        filepath: Filepath,
        recipe: Recipe,
        *,
        is_several: bool = False,
        says_ending: bool = False,
        tokenizer_files: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        sharded = is_several or recipe.may_make_several
        self.corpus = place_of(filepath, timeout_s, sharded=sharded)
        self.what = self.corpus.what
        why = recipe.why_no_file(is_several=is_several)
        if why:
            self.corpus.as_place(why)
        says_ending = says_ending and recipe.is_first
        self._intake = load_intake(recipe, says_ending=says_ending)
        self._packed = _packed_tokenizer(self._intake, tokenizer_files)
        self.recipe = self._intake.recipe
        if self._packed is not None:
            path = self.corpus.name.tokenizer(digest_of_tokenizer(self._packed))
            file = path.name, len(self._packed)
            self.recipe = replace(self.recipe, tokenizer_file=file)
        self._resources = ExitStack()
        self._is_committed = False

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The loaded tokenizer."""
        return self._intake.tokenizer

    @property
    def switched_off(self) -> str:
        """What was random in the tokenizer and is now switched off; else empty."""
        return "" if self.tokenizer is None else self.tokenizer.switched_off

    @property
    def place(self) -> Place:
        """Where a corpus with a manifest is; raises ValueError for one file."""
        return self.corpus.as_place("one process writes it")

    def kept(
        self, input_difference: Callable[[object], str] | None = None
    ) -> WriteSummary | None:
        """Return the summary of a corpus that `exist="keep"` keeps; None to write.

        If it was made from inputs, prints that it is kept. Needs no lock, so it works
        in a read-only folder.

        Args:
            input_difference: Says how recorded inputs differ from those of this write.

        Raises:
            FileExistsError: The corpus was made with other arguments, or lacks a file.
        """
        if self.recipe.exist != "keep":
            return None
        corpus = self.corpus
        manifest = corpus.existing()
        if manifest is None:
            return None
        self._check_kept(manifest, input_difference)
        shards = manifest.shards.names
        missing = {*shards} - corpus.files.sizes(shards).keys()
        if missing:
            raise FileExistsError(
                f"{corpus.folder}{min(missing)}: a shard of the corpus is missing; "
                'restore it, or use exist="replace"'
            )
        kept = corpus.summary(
            corpus.listed(manifest), fingerprint=manifest.fingerprint, kept=True
        )
        if self.recipe.inputs is not None:
            note(
                f"kept {kept.num_tokens:,} tokens of {self.what}: the same command "
                "made them from these inputs"
            )
        return kept

    def __enter__(self) -> Self:
        place, replaces = self.place, self.recipe.exist == "replace"
        if not replaces:
            place.check_no_bare_shards()
        with ExitStack() as resources:
            place.enter(resources)
            place.begin(replaces=replaces)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()
        if self._is_committed and self.recipe.exist != "append":
            self.place.remove_leftovers()

    def keep_tokenizer(self) -> None:
        """Keep the tokenizer at the place, before the commit that names its file."""
        file, files = self.recipe.tokenizer_file, self.place.files
        if file is not None and self._packed is not None:
            name, size = file
            if files.sizes([name]).get(name) != size:
                files.replace(name, self._packed)

    def begin(self) -> None:
        """Check that the write may change the corpus, and take over its type and kind.

        Raises:
            FileExistsError: The write may not change the corpus.
            ValueError: The documents do not fit the corpus.
        """
        end = self.place.end
        if end.versions and self.recipe.exist != "replace":
            self.recipe = _for_corpus(self.recipe, end, self.what)

    def has_appended(self) -> bool:
        """Return whether the corpus has the documents of the same inputs already.

        Raises:
            ValueError: The documents cannot be appended to the corpus.
        """
        found = self.corpus.existing() if self.recipe.exist == "append" else None
        if found is None:
            return False
        _for_corpus(self.recipe, found, self.what)
        inputs = [each.arguments.get("inputs") for each in found.versions]
        return self.recipe.inputs in inputs

    def decide(self, documents: Iterable[object]) -> None:
        """Read up to the first document to write, which decides item type and kind.

        Raises:
            NoDocumentsError: There are no documents to write.
        """
        intake = replace(self._intake, recipe=self.recipe)
        if not self.recipe.chooses:  # The first document decides: read none ahead.
            intake = intake.one_by_one()
        if not any(True for _ in intake.chosen(documents)):
            raise NoDocumentsError(self.what)
        self.recipe = intake.recipe

    def job(self, *facts: object) -> str:
        """Return 12 hexadecimal digits that name the job of this write.

        Args:
            *facts: What else determines the shards, as JSON.
        """
        return self.recipe.digest(self.place.end.fingerprint, *facts)

    def commit(self, new: NewShards) -> WriteSummary:
        """Commit shards, which are complete."""
        self.keep_tokenizer()
        summary = commit(self.recipe, self.place, new)
        self._is_committed = True
        return replace(summary, switched_off=self.switched_off)

    def discard(self, digest: str, kept: Iterable[str] = ()) -> None:
        """Delete the files of a job, except those in `kept` or in the manifest."""
        place = self.place
        start = f"{place.name.prefix}{digest}_"
        place.discard_unlisted(
            each
            for each in place.files.sizes()
            if (drafted_name(each) or each).startswith(start) and each not in {*kept}
        )

    def run(
        self,
        data: Iterable[object],
        ending: Callable[[], Mapping[str, object]] | None = None,
        *,
        is_encoded: bool = False,
    ) -> WriteSummary:
        """Write documents in this process, and commit them.

        Args:
            data: The documents.
            ending: Returns metadata for the last shard, after the last document. If
                given, the documents are rows with an origin.
            is_encoded: Whether the documents are tokens of another corpus, so that they
                are appended to a corpus of texts too.
        """
        if isinstance(data, (str, bytes, bytearray, Mapping)):
            kind = type(cast("object", data)).__name__
            raise TypeError(
                f"data is one {kind}; pass an iterable of documents, such as [data]"
            )
        kept = self.kept()
        if kept is not None:
            if self.recipe.inputs is None:
                _say_kept(self.what, kept, self.recipe, data)
            return kept
        if isinstance(self.corpus, OneFile):
            return self._written_file(self.corpus, data, ending)
        with self:
            self.begin()
            intake = replace(self._intake, recipe=self.recipe)
            if is_encoded and self.recipe.kind == "text":
                data = map(Encoded, data)
            place = self.place
            new = write_shards(
                place, intake, place.new_shards(), data, ending, discards=True
            )
            try:
                return self.commit(new)
            except BaseException:
                place.discard_unlisted(new.sizes)
                raise

    def _check_kept(
        self, manifest: Manifest, input_difference: Callable[[object], str] | None
    ) -> None:
        """Raise FileExistsError if a version was made with other arguments."""
        versions, arguments = manifest.versions, self.recipe.recorded
        for number, version in enumerate(versions, 1):
            if version.arguments == arguments:
                continue
            many = len(versions) > 1
            which = f"version {number} of {len(versions)} was " if many else ""
            found = _difference(version.arguments, arguments, input_difference)
            append = 'use exist="append" to add documents, '
            raise FileExistsError(
                f"{self.what}: {which}{found}; {append * self._may_append(manifest)}"
                'write elsewhere, or use exist="replace", which deletes the shards '
                "from under every run that trains on them"
            )

    def _may_append(self, manifest: Manifest) -> bool:
        try:
            _for_corpus(replace(self.recipe, exist="append"), manifest, self.what)
        except ValueError:
            return False
        return self.corpus.may_grow

    def _check_free(self, path: Path) -> None:
        if self.recipe.exist == "error" and path.exists():
            raise FileExistsError(
                f'{path}: the corpus exists already; use exist="keep" or '
                'exist="replace", or write elsewhere'
            )

    def _written_file(
        self,
        file: OneFile,
        data: Iterable[object],
        ending: Callable[[], Mapping[str, object]] | None,
    ) -> WriteSummary:
        """Write a corpus of one file, which needs no manifest."""
        folder = file.name.folder
        make_folder(folder)
        with file.writing():  # Locks the draft until it is renamed.
            metadata: dict[str, Any] = {"arguments": self.recipe.recorded}
            kept = self.recipe.tokenizer_file
            if kept is not None:
                metadata["tokenizer_file"] = {"name": kept[0], "bytes": kept[1]}
            series = ShardSeries(
                file.what,
                lambda: file.path,
                self._intake,
                metadata,
                draft=file.draft,
            )
            try:
                self._check_free(file.path)
                if kept is not None and self._packed is not None:
                    replace_file(folder / kept[0], self._packed)
                series.write_all(data, ending)
            except BaseException:
                series.abort()
                if not series.paths:
                    file.draft.unlink(missing_ok=True)
                raise
            finally:
                file.files.delete(file.tokenizers_left())
        summary = file.summary(series.done)
        return replace(summary, switched_off=self.switched_off)


@dataclass
class WriteJob:
    """The picklable data that writing shards of one corpus needs, in any process.

    The shards are the same in each process, and only their names differ. All begin with
    the digest of the write or the job, so its files can be found.

    Attributes:
        digest: 12 hexadecimal digits, the beginning of the shards' names.
        target: The corpus: the names of its files on a disk, or the URL of its pattern.
        recipe: The arguments of the write. If its item type is open, the first document
            decides it.
        tokenizer: The tokenizer, if this process has loaded it.
    """

    digest: str
    target: CorpusName | str
    recipe: Recipe
    tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Each process loads the tokenizer once; an object that was passed is pickled.
        return self.__dict__ | {"tokenizer": None}

    def unit(
        self,
        place: Place,
        number: int,
        documents: Iterable[object],
        ending: Callable[[], Mapping[str, object]],
        arrange: Arrange | None = None,
    ) -> NewShards:
        """Write unit `number` at a place; its shards always have the same names.

        Args:
            place: The place of the corpus.
            number: Number of the unit.
            documents: Rows with an origin.
            ending: Returns metadata for the last shard, after the last document.
            arrange: Returns the documents in the order in which to write them.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        if self.tokenizer is None:
            self.tokenizer = load_tokenizer(self.recipe)
        intake = intake_of(self.recipe, self.tokenizer)
        new_path = place.new_shards(self.digest, number)
        # The shards of a failed unit stay: another process may have finished the unit.
        return write_shards(place, intake, new_path, documents, ending, arrange=arrange)

    def attempt(
        self, place: Place, task: int, documents: Iterable[object]
    ) -> NewShards:
        """Write the documents of a task; every attempt has other names.

        Args:
            place: The place of the corpus.
            task: Number of the task.
            documents: Rows with an origin.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        number = task * _PER_TASK + secrets.randbelow(_PER_TASK)
        # An `ending` says that the documents are rows. `dict` adds no metadata.
        return self.unit(place, number, documents, dict)


def write_shards(
    place: Place,
    intake: Intake,
    new_path: Callable[[Path], Path],
    documents: Iterable[object],
    ending: Callable[[], Mapping[str, object]] | None = None,
    *,
    arrange: Arrange | None = None,
    discards: bool = False,
) -> NewShards:
    """Write documents as shards at a place; return what the commit needs.

    Args:
        place: The place of the corpus.
        intake: Converts the documents, by the recipe of the write.
        new_path: Returns the path of the next shard in a folder.
        documents: The documents; with `ending`, rows with an origin.
        ending: Returns metadata for the last shard, after the last document.
        arrange: Returns the documents in the order in which to write them.
        discards: Whether to delete finished shards after an error.

    Returns:
        The shards; none if there are no documents.
    """
    with place.files.stage() as folder:
        series = ShardSeries(
            place.pattern,
            lambda: new_path(folder.path),
            intake,
            {},
            name=place.name,
            on_closed=folder.publish,
        )
        try:
            series.write_all(documents, ending, arrange)
        except NoDocumentsError:
            return NewShards()
        except BaseException:
            series.abort()
            if discards:
                place.discard_unlisted(path.name for path in series.all_paths)
            raise
    return series.done


def commit(
    recipe: Recipe,
    place: Place,
    new: NewShards,
    lost: Callable[[Place], str] = lambda _: _WRITE_AGAIN,
) -> WriteSummary:
    """Commit shards, which are complete at the place with all their files.

    If another write committed since `place.begin`, an append begins again from the
    new manifest. A write that replaces the corpus does so only if the other write
    was a compaction, which changes no document.

    Args:
        recipe: The arguments of the write, with what the tokenizer decides.
        place: Where the corpus is.
        new: The shards.
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
            return place.summary(new)
        if recipe.exist == "replace" and place.end.fingerprint == base:
            continue  # It was a compaction, so there is still the same to replace.
        is_unclear = recipe.exist == "append" and place.files.may_act_late
        if is_unclear and place.lists([str(added.fingerprint)]):
            # The manifest has this write's version, but not its shards: they were
            # merged, or another program has appended the same documents.
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
    return place.summary(new)


def _added(recipe: Recipe, place: Place, new: NewShards) -> Manifest:
    """Return a manifest of only the new shards, for an append to add."""
    end = place.end if recipe.exist == "append" else Manifest()
    if end.versions:
        _for_corpus(recipe, end, place.pattern)
        if place.lists(new.shards.names[:1]):
            raise FileExistsError(
                f"{place.folder}{new.shards.names[0]}: another process committed the "
                "same units during this write; to append them twice, write again"
            )
    else:
        end = recipe.manifest
    version = end.last.followed_by(
        new.shards, new.bins, recipe.recorded, recipe.encoder, recipe.tokenizer_file
    )
    return end.with_only(new, version)


def _packed_tokenizer(
    intake: Intake, of_another: Mapping[str, str] | None
) -> bytes | None:
    if of_another is not None:
        return pack_tokenizer(of_another) if of_another else None
    files = {} if intake.tokenizer is None else {**intake.tokenizer.files}
    if TOKENIZER_FILE not in files:
        return None
    chat = intake.recipe.fields.chat
    if isinstance(chat, Chat):  # What rendered the chats, wherever it was.
        files[TEMPLATE_FILE] = chat.text
    return pack_tokenizer(files)


def _for_corpus(recipe: Recipe, manifest: Manifest, what: str) -> Recipe:
    """Return the recipe of an append, with item type and kind of the corpus `what`.

    Raises:
        FileExistsError: The write may not change the corpus.
        ValueError: The documents do not fit the corpus.
    """
    if recipe.exist != "append":
        raise FileExistsError(
            f'{what}: the corpus exists already; use exist="keep", '
            'exist="replace" or exist="append", or write elsewhere'
        )
    decided = recipe.decided(manifest.dtype_name, manifest.kind)
    facts = decided.manifest.alike
    for name, old in manifest.alike.items():
        new = facts[name]
        if old != new:
            raise ValueError(
                f"{what}: its {name} is {old}, but {new} of the new documents; append "
                f"with the same {name}, or write another corpus"
            )
    if manifest.tokenizer != recipe.tokenizer_record:
        raise ValueError(
            f"{what}: was written with another tokenizer; append with the same "
            "tokenizer, or write another corpus"
        )
    _check_split(manifest, recipe.side, what)
    recipe.check_brings(manifest, what)
    return decided


def _difference(
    recorded: Mapping[str, Any],
    arguments: Mapping[str, Any],
    input_difference: Callable[[object], str] | None,
) -> str:
    """Describe how the arguments of a write differ from the recorded arguments."""
    if not recorded:
        return "made with other arguments (not recorded)"
    # Inputs are too long for a message, so only what differs of them is said.
    past, now = (
        {
            name: as_given(name, value)
            for name, value in each.items()
            if name != "inputs" or input_difference is None
        }
        for each in (recorded, arguments)
    )
    pairs = other_arguments(past, now)
    if not pairs and input_difference is not None and "inputs" in recorded:
        return input_difference(recorded["inputs"])
    return f"made with other arguments ({pairs or 'its inputs are not recorded'})"


def _say_kept(what: str, kept: WriteSummary, recipe: Recipe, data: object) -> None:
    """Print what a write with `exist="keep"` kept, and that it read no documents.

    Warns if `data`, as given to the write, has another number of documents. The warning
    names the line in the user's program.
    """
    said = (
        f"kept {kept.num_tokens:,} tokens of {what}; the documents given were not read "
        '(exist="replace" writes them)'
    )
    count = len(cast("Sequence[object]", data)) if isinstance(data, Sequence) else None
    if count in {None, kept.num_documents} or recipe.pack is not None:
        note(said)
    else:
        warnings.warn(
            f"{said}, although {counted(count or 0, 'document')} "
            f"{'is' if count == 1 else 'are'} given, and not {kept.num_documents:,}",
            stacklevel=4,
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
        f"other side; {old.how_to_append()}"
    )
