"""Find the objects that URLs, patterns and folders in buckets name.

Sizes and tags come from the listing, so many small objects need no request each.
"""

from __future__ import annotations

import contextlib
import glob
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from roxxel_store.client import Bucket, bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.files import in_natural_order
from roxxel_store.urls import DEFAULT_TIMEOUT_S

from roxxel_prepare._inputs.tables import files_of_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_store.client import ObjectVersion

_MOST_STATE_BYTES = 64 << 20


def found_objects(
    url: str, *, is_folder: bool
) -> tuple[str | None, dict[str, ObjectVersion]]:
    """Return the folder that was searched, and the objects of a URL in natural order.

    As on a disk, a folder means its objects, and the objects in its subfolders. In a
    pattern, `*` and `[...]` stand for parts of a name, and `**` for folders. The folder
    is None if the URL, or the list of a saved dataset, names each object.

    Raises:
        BucketError: The store cannot be listed, or reports no version of an object.
        FileNotFoundError: There is no such object.
        ValueError: A web server would have to be listed.
    """
    is_web = url.startswith(("http://", "https://"))
    if is_web and (is_folder or glob.has_magic(url)):
        raise ValueError(
            f"{url}: the objects of a web server cannot be listed; pass the URL of "
            "each file"
        )
    folder: str | None = None
    if glob.has_magic(url):
        folder, found = _matching(url)
        what = f"{url}: no object matches the pattern"
    else:
        if not is_folder:
            with contextlib.suppress(FileNotFoundError):
                return None, _checked({url: _version(url)})
        folder, found = (url, {}) if is_web else _in_folder(url)
        what = f"{url}: there is no such object{'' if is_web else ' or folder'}"
    if not found:
        raise FileNotFoundError(f"{what}; check the URL")
    return folder, _checked(found)


def _matching(url: str) -> tuple[str | None, dict[str, ObjectVersion]]:
    """Return the folder in which a pattern begins, and the objects that it matches."""
    parts = url.split("/")
    first = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    base = "/".join(parts[:first])
    is_deep = first < len(parts) - 1 or parts[first] == "**"
    listed = _listed(base, is_deep=is_deep)
    if url in listed:  # The name of an object may have brackets.
        return None, {url: listed[url]}
    return base, {
        each: version
        for each, version in listed.items()
        if _matches(each[len(base) + 1 :].split("/"), parts[first:])
    }


def _matches(names: list[str], parts: list[str]) -> bool:
    """Return whether a path matches a pattern; both are divided at their slashes."""
    if not (names and parts):
        return names == parts
    if parts[0] == "**":
        is_last = len(parts) == 1
        return is_last or any(_matches(names[n:], parts[1:]) for n in range(len(names)))
    return fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])


def _in_folder(url: str) -> tuple[str | None, dict[str, ObjectVersion]]:
    """Return a folder and its objects, or None and the files of a saved dataset."""
    listed = _listed(url, is_deep=True)

    def content(name: str) -> bytes | None:
        if f"{url}/{name}" not in listed:
            return None
        bucket = Bucket(url, DEFAULT_TIMEOUT_S)
        return bucket.get(name, most_bytes=_MOST_STATE_BYTES).data

    names = files_of_dataset(url, content)
    if names is None:
        return url, listed
    found: dict[str, ObjectVersion] = {}
    for name in names:
        path = f"{url}/{name}"
        if path not in listed:
            raise FileNotFoundError(
                f"{path}: there is no such object, but state.json lists it; copy the "
                "dataset again"
            )
        found[path] = listed[path]
    return None, found


def _listed(base: str, *, is_deep: bool) -> dict[str, ObjectVersion]:
    """Return the objects below a folder in natural order, without folder markers."""
    bucket = Bucket(base, DEFAULT_TIMEOUT_S)
    found = bucket.tree() if is_deep else bucket.names().objects
    listed = {bucket.url_of(name): each.version for name, each in found.items()}
    return {
        each: listed[each]
        for each in in_natural_order(listed)
        if listed[each].size or _exists(each)
    }


def _version(url: str) -> ObjectVersion:
    bucket, name = bucket_of(url, DEFAULT_TIMEOUT_S)
    return bucket.version(name)


def _exists(url: str) -> bool:
    """Return whether an empty object exists, and is not the marker of a folder.

    Some tools put an empty object `folder/`, which is listed as `folder`.
    """
    try:
        _version(url)
    except FileNotFoundError:
        return False
    return True


def _checked(
    objects: Mapping[str, ObjectVersion],
) -> dict[str, ObjectVersion]:
    """Return the objects; raise BucketError for one without a tag."""
    for url, version in objects.items():
        if not version.tag:
            raise BucketError(
                f"{url}: the server sends neither an ETag nor a time of the last "
                "change, so a replaced object would not be detected; copy the file to "
                "a disk"
            )
    return dict(objects)
