"""Write documents into a corpus in a bucket.

Each shard is written in a temporary folder, uploaded when it is complete, and then
deleted from the folder. The commit is one conditional upload of the manifest. The names
of the shards begin with a number that no other write has, so writes never overwrite
each other's shards.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from roxxel_format._write.extension import (
    Extension,
    check_arguments,
    check_free,
    check_kept,
    say_kept,
    summary_of,
)
from roxxel_format._write.intake import load_intake
from roxxel_format._write.new_columns import NewColumns
from roxxel_format._write.place import Publication
from roxxel_format._write.series import ShardSeries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary
    from roxxel_format._write.place import BucketPlace


def write_to_bucket(
    place: BucketPlace,
    data: Iterable[object],
    options: WriteOptions,
    exist: Exist,
    *,
    says_ending: bool = False,
) -> WriteSummary:
    """Write documents as a corpus in a bucket; see `write_corpus`."""
    started, url = time.perf_counter(), place.url
    check_arguments(options, place.name, exist, data)
    options, intake = load_intake(options, says_ending=says_ending)
    arguments = options.recorded(intake.tokenizer_identity)
    extension = Extension(
        url,
        place.folder,
        options,
        intake,
        arguments,
        exist == "append",
        intake.recorded_tokenizer,
    )
    found = place.begin(replaces=exist == "replace").manifest
    if exist == "keep" and found.versions:
        limits = check_kept(found, options, arguments, url)
        dtype = str(found.dtype_name)
        kept = summary_of(place.folder, found.shards, dtype, started, kept=True)
        say_kept(url, kept, limits, options, data)
        return kept
    if exist == "append":
        extension.check_appendable(found)
    else:
        is_taken = exist != "replace" and bool(found.versions)
        check_free(url, is_taken=is_taken)
    with TemporaryDirectory(prefix="roxxel-") as folder:
        publication = Publication(
            place, found, extension.extended, appends=extension.appends
        )
        uploads = _Uploads(place, Path(folder))
        columns = NewColumns(options.fields, place.name, uploads.add)
        series = ShardSeries(
            url,
            uploads.new_path,
            options,
            intake,
            {},
            columns=columns,
            on_closed=uploads.add,
        )
        try:
            series.write_all(data)
            publication.commit(series.table, columns.tables)
        except BaseException:
            series.abort()
            # A put that failed may still take effect. Then `clean` deletes the shards
            # later, if the corpus does not list them.
            if not publication.may_be_committed:
                uploads.undo()
            raise
    return summary_of(
        place.folder,
        series.table,
        str(intake.dtype),
        started,
        num_dropped=intake.num_dropped,
    )


class _Uploads:
    """Uploads files that are complete, and deletes them again if the write fails."""

    def __init__(self, place: BucketPlace, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._job = secrets.token_hex(6)
        self._num_shards = 0
        self._names: list[str] = []

    def new_path(self) -> tuple[Path, None]:
        """Return the path of the next shard in the temporary folder."""
        name = self._place.name.unit_shard(self._job, self._num_shards, 0).name
        self._num_shards += 1
        return self._folder / name, None

    def add(self, path: Path) -> None:
        """Upload a shard or a file of a column, and delete the file."""
        self._names.append(path.name)
        self._place.upload(path.name, path)
        path.unlink()

    def undo(self) -> None:
        """Delete the uploaded files, unless the corpus lists them."""
        with contextlib.suppress(OSError, ValueError):
            committed = self._place.begin(replaces=False).manifest.file_names()
            self._place.discard(set(self._names) - committed)
