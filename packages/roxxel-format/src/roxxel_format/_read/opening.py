"""Open a corpus where it is: on a disk, in a bucket, or on a web server.

A pattern or a folder means the shards that its manifest lists, because files without a
manifest may be only a part of a corpus. One shard, or a list of shards, needs no
manifest. Objects in a bucket are never listed: a web server cannot list them.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.files import read_file
from roxxel_store.urls import DEFAULT_TIMEOUT_S, is_pattern, is_url

from roxxel_format._corpus_name import (
    SUFFIX,
    corpus_name,
    manifest_urls,
    matching_files,
    meant,
)
from roxxel_format._read.contents import file_contents, joined, listed_contents
from roxxel_format._read.remote import RemoteFiles, fetch
from roxxel_format._read.shard import LOCAL, open_shard
from roxxel_format._spec.layout import HEAD_SIZE
from roxxel_format._spec.manifest_file import MAX_MANIFEST_SIZE
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from roxxel_format._corpus_name import CorpusName
    from roxxel_format._read.contents import Contents
    from roxxel_format._read.files import OpenFile


def open_corpus(
    filepath: str | tuple[str, ...],
    version: str | None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Contents:
    """Open a corpus by absolute paths or URLs; without `version`, the current one.

    Raises:
        FileNotFoundError: There is no file or object of this name.
        ShardError: The files are not a corpus, or have no such version.
        BucketError: A bucket refused, failed, or did not answer in time.
    """
    paths = (filepath,) if isinstance(filepath, str) else filepath
    open_path = _open_on_disk
    if is_remote(filepath):
        files = RemoteFiles(timeout_s)
        open_path = partial(_open_url, files=files)
        for url in filter(_is_shard_url, paths):
            files.will_open(url, [(0, HEAD_SIZE)])
    if isinstance(filepath, str):
        contents = open_path(filepath, version)
    else:
        contents = joined(filepath, [open_path(path, None) for path in paths])
    if version not in {None, contents.fingerprint}:
        raise ShardError(
            f"{', '.join(paths)}: has no version {version}: the corpus was replaced, "
            "one of a list was appended to, or the fingerprint is not one of its "
            "versions; open the corpus again to read its current version "
            f"{contents.fingerprint}"
        )
    return contents


def is_remote(filepath: str | tuple[str, ...]) -> bool:
    """Return whether a corpus is read from a bucket or a web server, by its paths."""
    paths = (filepath,) if isinstance(filepath, str) else filepath
    urls = [path for path in paths if is_url(path)]
    if urls and len(urls) < len(paths):
        raise ShardError(
            f"{urls[0]}: a list names URLs or paths on a disk, not both; open them as "
            "two corpora"
        )
    return bool(urls)


def open_shard_file(path: str, timeout_s: float) -> OpenFile:
    """Open one shard for reading its bytes, on a disk or at a URL.

    Raises:
        OSError: The file cannot be opened, or the bucket fails.
    """
    if not is_remote(path):
        return LOCAL.open(path)
    files = RemoteFiles(timeout_s)
    return files.open(path, files.size_of(path, HEAD_SIZE))


def _open_on_disk(filepath: str, version: str | None) -> Contents:
    filepath = meant(filepath)
    try:
        name = corpus_name(filepath)
    except ValueError as error:
        raise ShardError(str(error)) from error
    if name.manifest is None:
        (path,) = matching_files(filepath)
        return file_contents(path)
    data, path = _read_manifest(name, filepath), str(name.manifest)
    # For 100 000 names, `os.path.join` takes 60 ms, and adding strings 13 ms.
    folder = path.removesuffix(name.manifest.name)
    return listed_contents(filepath, data, path, folder, version)


def _read_manifest(name: CorpusName, filepath: str) -> bytes:
    """Return the bytes of the manifest of a corpus, which `filepath` names.

    Raises:
        FileNotFoundError: There is no such file or folder, or no shard in it.
        ShardError: There are shards without a manifest, or files that are no shards.
    """
    try:
        return read_file(name.head, MAX_MANIFEST_SIZE, ShardError)
    except (FileNotFoundError, NotADirectoryError):
        found = matching_files(filepath)
    open_shard(found[0])  # An error about a file that is no shard, or damaged.
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    where = filepath if is_pattern(filepath) else f"{filepath.rstrip('/')}/"
    command = roxxel_command(f'format verify "{where}" --adopt')
    raise ShardError(
        f"{filepath}: has no manifest, so nothing says whether {found[0]}{more} are "
        "all of a corpus; open a corpus by its own pattern or folder, and other files "
        "by a list of them; if a write is in progress or was interrupted, wait for it "
        f"or repeat it; if the manifest was lost, `{command}` makes a new one"
    )


def _open_url(url: str, version: str | None, files: RemoteFiles) -> Contents:
    try:
        manifests = manifest_urls(url)
    except ValueError as error:
        raise ShardError(str(error)) from error
    if _is_shard_url(url):
        with contextlib.suppress(FileNotFoundError):
            return file_contents(url, files, files.size_of(url, HEAD_SIZE))
    for path in manifests:
        try:
            data = fetch(path, MAX_MANIFEST_SIZE, files.timeout_s)
        except FileNotFoundError:
            continue
        folder = path.rpartition("/")[0] + "/"
        return listed_contents(url, data, path, folder, version, files)
    names = " or ".join(path.rpartition("/")[2] for path in manifests)
    raise FileNotFoundError(
        f"{url}: no such corpus: there is no {names}; check the URL, and copy the "
        "manifest with the shards"
    )


def _is_shard_url(url: str) -> bool:
    """Return whether a URL has the form of a single shard's name."""
    return url.endswith(SUFFIX) and "*" not in url
