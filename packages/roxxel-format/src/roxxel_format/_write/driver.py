"""One write of a corpus: checks, shards and commit, all of it or nothing.

A write changes no committed file before its commit. So a write that fails or is killed
leaves the old corpus unchanged. Where the corpus is, and who writes its shards, are
arguments: this process (`CorpusWrite.run`), tasks on many machines, or the units of a
preparation (`CorpusWrite.job`).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

from roxxel_store.files import draft_path, drafted_name, make_folder
from roxxel_store.output import replace_file
from roxxel_store.screen import note
from roxxel_store.urls import DEFAULT_TIMEOUT_S

from roxxel_format._spec.kept_tokenizer import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    digest_of_tokenizer,
    pack_tokenizer,
)
from roxxel_format._spec.tables import NewShards
from roxxel_format._write.checks import (
    check_arguments,
    check_data,
    check_kept,
    say_kept,
)
from roxxel_format._write.intake import encoded_before, load_intake
from roxxel_format._write.job import WriteJob, write_shards
from roxxel_format._write.one_file import only_writer, tokenizers_left
from roxxel_format._write.place import place_of
from roxxel_format._write.recipe import Recipe
from roxxel_format._write.series import NoDocumentsError, ShardSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from roxxel_format._store.corpus_name import Filepath
    from roxxel_format._write.fields import Chat
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary


class CorpusWrite:
    """One write of a corpus, from the checks of the arguments to the commit.

    The constructor checks the arguments and loads the tokenizer; it changes no file. In
    a `with` block, the write holds a lock that keeps `clean` from removing its shards.

    Args:
        filepath: The corpus: a folder, a pattern, or one file; or a URL.
        options: The arguments of the write.
        exist: What to do if the corpus exists.
        is_several: Whether several processes write shards of this corpus.
        says_ending: Whether to say how documents end if the tokenizer decides it.
        made_by: If the documents are tokens of another corpus: its record of the
            tokenizer, and the tokenizer's files.
        timeout_s: Seconds after which a request to a bucket fails.

    Attributes:
        options: The arguments, with the separator that the tokenizer decided.
        recipe: What the manifest will say; item type and kind are None until decided.
        place: Where the corpus is.

    Example:
        >>> from roxxel_format.writing import WriteOptions
        >>> write = CorpusWrite("ids_*.rox", WriteOptions(vocab_size=100), "error")
        >>> write.run([[5, 6, 7], [8]]).num_tokens
        4
    """

    def __init__(
        self,
        filepath: Filepath,
        options: WriteOptions,
        exist: Exist,
        *,
        is_several: bool = False,
        says_ending: bool = False,
        made_by: tuple[Mapping[str, Any], Mapping[str, str]] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._started = time.perf_counter()
        sharded = is_several or options.may_make_several(exist)
        self.place = place_of(filepath, timeout_s, sharded=sharded)
        self.what = self.place.what
        check_arguments(options, self.place.name, exist)
        if is_several and self.is_one_file:
            name = self.place.name
            raise ValueError(
                f"{name.single}: is one file, but several processes write several "
                f'shards; write to a pattern such as "{name.prefix}_*.rox"'
            )
        self.options, self._intake = load_intake(options, says_ending=says_ending)
        if says_ending and self._intake.tokenizer is not None:
            note(self._intake.tokenizer.encoding(), end="")
        recorded = self._intake.recorded_tokenizer
        self._kept = _kept_tokenizer(self._intake, self.options)
        if made_by is not None:
            recorded, files = made_by
            self._kept = pack_tokenizer(files) if files else None
        self.recipe = Recipe(
            exist,
            self.options.recorded(self._intake.tokenizer_identity),
            recorded,
            self.options.separator_value,
            options.block_size,
            options.fields.columns,
            self._intake.dtype,
            unit=options.pack,
            encoder=self._intake.encoder,
            tokenizer_file=self._tokenizer_file(),
            without_columns=options.without_columns,
        )
        self._resources = ExitStack()
        self._is_committed = False

    @property
    def switched_off(self) -> str:
        """What was random in the tokenizer and is now switched off; else empty."""
        tokenizer = self._intake.tokenizer
        return "" if tokenizer is None else tokenizer.switched_off

    @property
    def is_one_file(self) -> bool:
        """Whether the corpus is one file, which has no manifest."""
        return self.place.is_one_file

    def kept(
        self, describe: Callable[[Mapping[str, Any]], str | None] | None = None
    ) -> WriteSummary | None:
        """Return the summary of a corpus that `exist="keep"` keeps; None to write.

        Needs no lock, so it works in a read-only folder.

        Args:
            describe: Words the difference of the recorded arguments, if the caller has
                better words.

        Raises:
            FileExistsError: The corpus was made with other arguments, or lacks a file.
        """
        if self.recipe.exist != "keep":
            return None
        manifest = self.place.existing()
        if manifest is None:
            return None
        check_kept(
            manifest,
            self.recipe.arguments,
            self.what,
            describe,
            may_append=not self.is_one_file and self.recipe.may_append(manifest),
        )
        shards = manifest.shards.names
        missing = {*shards} - self.place.files.sizes(shards).keys()
        if missing:
            raise FileExistsError(
                f"{self.place.folder}{min(missing)}: a shard of the corpus is missing; "
                'restore it, or use exist="replace"'
            )
        listed = self.place.listed(manifest)
        return self.place.summary(
            listed, self._started, fingerprint=manifest.fingerprint, kept=True
        )

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
        if self._is_committed and not self.recipe.appends:
            self.place.remove_leftovers()

    def _tokenizer_file(self) -> tuple[str, int] | None:
        if self._kept is None:
            return None
        path = self.place.name.tokenizer(digest_of_tokenizer(self._kept))
        return path.name, len(self._kept)

    def keep_tokenizer(self) -> None:
        """Keep the tokenizer at the place, before the commit that names its file."""
        file, files = self.recipe.tokenizer_file, self.place.files
        if file is not None and self._kept is not None:
            name, size = file
            if files.sizes([name]).get(name) != size:
                files.replace(name, self._kept)

    def begin(self) -> None:
        """Check that the write may change the corpus, and take over its type and kind.

        Raises:
            FileExistsError: The write may not change the corpus.
            ValueError: The documents do not fit the corpus.
        """
        self.recipe = self.recipe.for_corpus(self.place.end, self.what)

    def decide(self, documents: Iterable[object]) -> None:
        """Read up to the first document to write, which decides item type and kind.

        Raises:
            NoDocumentsError: There are no documents to write.
        """
        options, recipe = self.options, self.recipe
        intake = replace(self._intake, dtype=recipe.dtype, kind=recipe.kind)
        if options.chooses is None:  # The first document decides: read none ahead.
            intake = intake.one_by_one()
        rows = intake.rows(documents, options.fields)
        if not any(intake.chooses(row.tokens, options) for row in rows):
            raise NoDocumentsError(self.what)
        self.recipe = recipe.decided(intake.dtype, intake.kind)

    def job(self, digest: str, recipe: Recipe | None = None) -> WriteJob:
        """Return the picklable job that writes shards in other processes.

        Args:
            digest: 12 hexadecimal digits, the beginning of the shards' names.
            recipe: The recipe, with item type and kind. Default: `self.recipe`.
        """
        place, recipe = self.place, recipe or self.recipe
        return WriteJob(
            digest,
            place.target,
            replace(self.options, dtype=recipe.dtype),
            recipe.kind,
            self._intake.tokenizer_identity,
            self._intake.tokenizer,
        )

    def commit(self, new: NewShards) -> WriteSummary:
        """Commit shards, which are complete; see `Recipe.commit`."""
        self.keep_tokenizer()
        summary = self.recipe.commit(self.place, new, self._started)
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
        check_data(data)
        kept = self.kept()
        if kept is not None:
            say_kept(self.what, kept, self.options, data)
            return kept
        if self.is_one_file:
            return self._written_file(data, ending)
        with self:
            self.begin()
            self._intake.dtype, self._intake.kind = self.recipe.dtype, self.recipe.kind
            if is_encoded and self.recipe.kind == "text":
                data = map(encoded_before, data)
            place = self.place
            new = write_shards(
                place,
                self.options,
                self._intake,
                place.new_shards(),
                data,
                ending,
                discards=True,
            )
            try:
                return self.commit(new)
            except BaseException:
                place.discard_unlisted(new.sizes)
                raise

    def _check_free(self, path: Path) -> None:
        if self.recipe.exist == "error" and path.exists():
            raise FileExistsError(
                f'{path}: the corpus exists already; use exist="keep" or '
                'exist="replace", or write elsewhere'
            )

    def _written_file(
        self,
        data: Iterable[object],
        ending: Callable[[], Mapping[str, object]] | None,
    ) -> WriteSummary:
        """Write a corpus of one file, which needs no manifest."""
        name, started = self.place.name, self._started
        make_folder(name.folder)
        path, draft = name.single, draft_path(name.single)
        with only_writer(name):  # Locks the draft until it is renamed.
            metadata: dict[str, Any] = {"arguments": self.recipe.arguments}
            file = self.recipe.tokenizer_file
            if file is not None:
                metadata["tokenizer_file"] = {"name": file[0], "bytes": file[1]}
            series = ShardSeries(
                name.pattern,
                lambda: path,
                self.options,
                self._intake,
                metadata,
                draft=draft,
            )
            try:
                self._check_free(path)
                if file is not None and self._kept is not None:
                    replace_file(name.folder / file[0], self._kept)
                series.write_all(data, ending)
            except BaseException:
                series.abort()
                if not series.paths:
                    draft.unlink(missing_ok=True)
                raise
            finally:
                self.place.files.delete(tokenizers_left(name))
        new = NewShards(
            series.table,
            dtype=self._intake.dtype,
            num_dropped=series.num_dropped,
            sync_s=series.sync_s,
        )
        summary = self.place.summary(new, started)
        return replace(summary, switched_off=self.switched_off)


def _kept_tokenizer(intake: Intake, options: WriteOptions) -> bytes | None:
    files = {} if intake.tokenizer is None else {**intake.tokenizer.files}
    if TOKENIZER_FILE not in files:
        return None
    if options.fields.chat:  # What rendered the chats, wherever it was.
        files[TEMPLATE_FILE] = cast("Chat", options.fields.chat).text
    return pack_tokenizer(files)
