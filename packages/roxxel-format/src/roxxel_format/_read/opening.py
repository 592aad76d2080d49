"""Open a corpus where it is: on a disk, in a bucket, or on a web server.

In a bucket a pattern or a folder means the shards of its manifest. Its objects are not
listed, because a web server cannot list, and because objects without a manifest may be
a part of a corpus. One shard, or a list of shards, needs no manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_format._read.contents import (
    checked_version,
    contents_of,
    joined,
    listed_contents,
    open_contents,
)
from roxxel_format._read.remote import RemoteFiles, fetch
from roxxel_format._read.shard import ShardMap
from roxxel_format._spec.layout import HEAD_SIZE
from roxxel_format._spec.manifest import MAX_MANIFEST_SIZE
from roxxel_format._store.corpus_name import SUFFIX, manifest_urls
from roxxel_format._store.urls import DEFAULT_TIMEOUT_S, is_url
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from roxxel_format._read.contents import Contents


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
    remote = [path for path in paths if is_url(path)]
    if not remote:
        return open_contents(filepath, version)
    if len(remote) < len(paths):
        raise ShardError(
            f"{remote[0]}: a list names URLs or paths on a disk, not both; open them "
            "as two corpora"
        )
    files = RemoteFiles(timeout_s)
    if isinstance(filepath, str):
        return checked_version(_open_url(filepath, version, files), version)
    for url in filter(_is_shard_url, paths):
        files.will_open(url, [(0, HEAD_SIZE)])
    contents = joined(filepath, [_open_url(url, None, files) for url in paths])
    return checked_version(contents, version)


def _open_url(url: str, version: str | None, files: RemoteFiles) -> Contents:
    try:
        manifests = manifest_urls(url)
    except ValueError as error:
        raise ShardError(str(error)) from error
    if _is_shard_url(url):
        found = _open_shard_url(url, files)
        if found is not None:
            return found
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


def _open_shard_url(url: str, files: RemoteFiles) -> Contents | None:
    """Open one shard without a manifest; None if there is no such object."""
    try:
        num_bytes = files.size_of(url, HEAD_SIZE)
    except FileNotFoundError:
        return None
    layout = ShardMap(files.open(url, num_bytes)).layout
    return contents_of(url, [url], [layout], files)


def _is_shard_url(url: str) -> bool:
    """Return whether a URL names one file, if there is such an object."""
    return url.endswith(SUFFIX) and "*" not in url
