"""Find the input files that paths, patterns, folders and URLs name.

On a disk and in a bucket a pattern and a folder mean the same. The sizes and tags of
objects come from the listing, so many small objects need no request each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import os
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format.writing import CorpusFiles, Fields
from roxxel_store.client import Bucket, ObjectVersion, bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.files import in_natural_order, matches_in, matches_of
from roxxel_store.records import parse_object
from roxxel_store.screen import note
from roxxel_store.urls import DEFAULT_TIMEOUT_S, is_pattern, url_of

from roxxel_prepare._inputs.formats import FORMATS, check_kinds, format_of, is_no_data
from roxxel_prepare._inputs.input_file import InputError, reason
from roxxel_prepare._inputs.input_record import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_SIDE_FILES = (".index", ".metadata", ".loss")
_MOST_STATE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of a path, in order; `folder` is None if the user named each file.

    `objects` has the version of each file that is an object in a bucket.
    """

    files: list[str]
    folder: str | None = None
    objects: Mapping[str, ObjectVersion] = dataclasses.field(
        default_factory=dict[str, ObjectVersion]
    )


def find_inputs(
    paths: Sequence[str],
    form: str | None = None,
    fields: Fields | None = None,
    *,
    field: str | None = None,
    outputs: Sequence[str] = (),
) -> Inputs:
    """Return the files that paths, patterns, folders and URLs name.

    The files of a pattern and of a folder are in natural order. A folder means its
    files, and the files in its subfolders, without files that are not data, such as
    `README.md`, and without the files of `outputs`. A folder that `datasets` saved
    means its Arrow files. Files next to a `.ds` file that belong to it, such as its
    index, are left out. Prints a line if the files have several formats, or if a file
    is given twice.

    Args:
        paths: Files, folders or patterns; `-` is the standard input.
        form: Format of the files; see `documents_in`.
        fields: The fields that make a document. Default: `text`.
        field: The field of the document, if the user named it.
        outputs: The corpora that are to be written.

    Raises:
        BucketError: A bucket cannot be listed.
        FileNotFoundError: A path does not exist, or a folder or a pattern has no file,
            or none that is data.
        InputError: The format of a file is not known, the files are of different kinds,
            a field is named but a file has none, or a folder that `datasets` saved
            cannot be read.
        ValueError: The form is unknown, a path is empty, `-` is given twice, or a URL
            is not valid, or is a pattern or a folder on a web server.
    """
    if form is not None and form not in FORMATS:
        raise ValueError(f"format={form!r} must be one of {', '.join(FORMATS)}")
    if not paths:
        raise ValueError("inputs is empty; pass files, folders, patterns or URLs")
    found: list[str] = []
    named: set[str] = set()
    left_out: list[str] = []
    objects: dict[str, ObjectVersion] = {}
    for path in paths:
        if not path:
            raise ValueError('an input is empty; pass "." for this folder')
        url = url_of(path)
        if url is None:
            each = _found_files(path)
        else:
            each = _found_objects(url, is_folder=path.endswith("/"))
            objects |= each.objects
        data = _data(each, outputs)
        if not data:
            raise FileNotFoundError(
                f"{path}: holds no data, but {_named(each.files)}; name a file itself "
                "if it is data"
            )
        found += data
        if each.folder is None:
            named.update(data)
        left_out += {*each.files}.difference(data)
    files = _without_side_files(found)
    if files.count("-") > 1:
        raise ValueError("-: the standard input can be read only once; pass one -")
    _say_twice(files)
    mixture = check_kinds(files, form, named)
    if mixture is not None:
        note(mixture)
    objects = {path: objects[path] for path in files if path in objects}
    fields = fields or Fields()
    _check_fields(files, form, fields, field)
    return Inputs(
        tuple(files),
        tuple(format_of(path, form) for path in files),
        form,
        fields.text,
        objects,
        tuple(sorted(left_out)),
    )


def _say_twice(files: Sequence[str]) -> None:
    """Print the first files that are given more than once."""
    counts = Counter(files)
    twice = [path for path, count in counts.items() if count > 1]
    if twice:
        more = f", like {len(twice) - 1:,} more" if len(twice) > 1 else ""
        note(
            f"{twice[0]}: is given {counts[twice[0]]} times{more}, and so are its "
            "documents"
        )


def _check_fields(
    paths: Sequence[str], form: str | None, fields: Fields, field: str | None
) -> None:
    """Raise InputError if the user named fields, but an input has none."""
    named = {
        "field": field,
        "prompt": fields.prompt,
        "completion": fields.completion,
        "document-id": fields.id,
    }
    options = [f"--{option} {name}" for option, name in named.items() if name]
    options += ["--chat"] if fields.chat else []
    if not options:
        return
    for path in paths:
        found = FORMATS[format_of(path, form)]
        if found.kind != "rows":
            raise InputError(
                f"{path}: is read as {found.what}, which has no fields for "
                f"{' and '.join(options)}; leave the option out, pass files of rows "
                "(JSON, CSV, Parquet, Arrow), or name their --format"
            )


def _without_side_files(paths: list[str]) -> list[str]:
    """Return the paths, without indexes and other side files of `.ds` files."""
    tokens = {path for path in paths if path.endswith(".ds")}
    side = {path + suffix for path in tokens for suffix in _SIDE_FILES}
    return [path for path in paths if path not in side]


def _data(found: _Found, outputs: Sequence[str]) -> list[str]:
    """Return the files that were named, or that are data in a folder."""
    if found.folder is None:
        return found.files
    start = found.folder.rstrip("/") + "/" if found.folder else ""
    own = [CorpusFiles(output) for output in outputs]
    return [
        file
        for file in found.files
        if not is_no_data(file.removeprefix(start))
        and not any(each.has(file) for each in own)
    ]


def _named(files: list[str]) -> str:
    more = len(files) - 1
    names = f"{files[0].rpartition('/')[2]}{f' and {more} more' if more else ''}"
    return f"only {names}, which describe data or are left over from a write"


def _found_files(path: str) -> _Found:
    if path != "-" and Path(path).is_dir():
        names = _files_of_dataset(path, lambda name: _content(Path(path, name)))
        if names is not None:
            if not names:
                raise FileNotFoundError(
                    f"{path}: the dataset has no rows; check the path"
                )
            return _Found([str(Path(path, name)) for name in names])
        inside = list(matches_in(Path(path), "**/*"))
        _check_no_links(inside, Path(path))
        files = in_natural_order(str(each) for each in inside if _is_input(each))
        found = _Found(files, str(Path(path)))
        what = f"{path}: the folder holds no file"
    elif is_pattern(path):
        base, matches = matches_of(path)
        found = _Found([each for each in matches if _is_input(Path(each))], base)
        what = f"{path}: no file matches the pattern"
    elif path != "-" and not Path(path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    else:
        return _Found([path])
    if not found.files:
        first = " (the corpus to write comes first)" if path.endswith(".rox") else ""
        raise FileNotFoundError(f"{what}; check the path{first}")
    return found


def _is_input(path: Path) -> bool:
    """Return whether a match is a file, or a link to a file that is gone.

    Opening such a link is an error: otherwise nobody would notice that its documents
    are missing.
    """
    return path.is_file() or not path.exists()


def _check_no_links(paths: Iterable[Path], folder: Path) -> None:
    """Raise InputError for a link to a folder: its files were not searched."""
    for path in paths:
        is_link = path.is_symlink() and path.is_dir()
        if is_link and not is_no_data(path.relative_to(folder).as_posix()):
            raise InputError(
                f"{path}: is a link to a folder, and files are not searched through "
                "links; pass it as an input of its own, or remove the link"
            )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _found_objects(url: str, *, is_folder: bool) -> _Found:
    """Return the objects of a URL in natural order.

    In a pattern, `*` and `[...]` stand for parts of a name, and `**` for folders.
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
                return _objects(None, {url: _version(url)})
        folder, found = (url, {}) if is_web else _in_folder(url)
        what = f"{url}: there is no such object{'' if is_web else ' or folder'}"
    if not found:
        raise FileNotFoundError(f"{what}; check the URL")
    return _objects(folder, found)


def _objects(folder: str | None, objects: Mapping[str, ObjectVersion]) -> _Found:
    """Return objects; raise BucketError for one without a tag."""
    for url, version in objects.items():
        if not version.tag:
            raise BucketError(
                f"{url}: the server sends neither an ETag nor a time of the last "
                "change, so a replaced object would not be detected; copy the file to "
                "a disk"
            )
    return _Found([*objects], folder, objects)


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

    names = _files_of_dataset(url, content)
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


def _files_of_dataset(
    folder: str, read: Callable[[str], bytes | None]
) -> list[str] | None:
    """Return the names of Arrow files in a folder that `datasets` saved.

    Returns None for other folders. `read` returns the content of a file in the folder;
    None if there is no such file.

    Raises:
        InputError: The folder holds several splits, or its list of files is damaged.
    """
    if read("dataset_dict.json") is not None:
        raise InputError(
            f"{folder}: holds the splits of a DatasetDict; pass the folder of one "
            "split, or of several"
        )
    state = read("state.json")
    if state is None or read("dataset_info.json") is None:
        return None
    table = parse_object(
        state, f"{folder}/state.json", "save the dataset again", InputError
    )
    try:
        names = [str(each["filename"]) for each in table["_data_files"]]
        mapped = table.get("_indices_data_files")
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{folder}/state.json: does not list the files of a dataset "
            f"({reason(error)}); save the dataset again"
        ) from error
    if mapped:
        raise InputError(
            f"{folder}: its rows are chosen by a file of indices; call "
            "flatten_indices() on the dataset and save it again"
        )
    return names
