"""Find the input files that paths, patterns, folders and URLs name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format._prepare.object_listing import found_objects
from roxxel_format._prepare.tables import files_of_dataset, without_side_files
from roxxel_format._store.corpus_name import is_pattern, matches_of, visible
from roxxel_format._store.urls import ObjectVersion, is_url
from roxxel_format._write.input_record import Inputs

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_inputs(
    paths: Sequence[str], form: str | None = None, field: str = "text"
) -> Inputs:
    """Return the files that paths, patterns, folders and URLs name.

    The files of a pattern and of a folder are in natural order. A folder means its
    visible files, and those of the folders in it. A folder that `datasets` saved means
    its Arrow files. The files beside a `.ds` file, such as its index, are left out.

    Args:
        paths: Files, folders or patterns; `-` is the standard input.
        form: Format of the files; see `documents_in`.
        field: Field of the documents; see `documents_in`.

    Raises:
        BucketError: A bucket cannot be listed.
        FileNotFoundError: A folder or a pattern has no file.
        InputError: A folder that `datasets` saved cannot be read.
        ValueError: A URL is not valid, or is a pattern or a folder on a web server.
    """
    found: list[str] = []
    objects: dict[str, ObjectVersion] = {}
    for path in paths:
        if is_url(path):
            listed = found_objects(path)
            objects |= listed
            found += listed
        else:
            found += _found_files(path)
    files = without_side_files(found)
    objects = {path: objects[path] for path in files if path in objects}
    return Inputs(tuple(files), form, field, objects)


def _found_files(path: str) -> list[str]:
    if path != "-" and Path(path).is_dir():
        names = files_of_dataset(path, lambda name: _content(Path(path, name)))
        if names is not None:
            files = [str(Path(path, name)) for name in names]
            what = f"{path}: the dataset has no rows"
        else:
            inside = visible(each for each in Path(path).rglob("*") if each.is_file())
            is_hidden = [
                any(part[0] == "." for part in Path(each).relative_to(path).parts)
                for each in inside
            ]
            files = [a for a, b in zip(inside, is_hidden, strict=True) if not b]
            what = f"{path}: the folder holds no file"
    elif is_pattern(path):
        files = [each for each in matches_of(path) if Path(each).is_file()]
        what = f"{path}: no file matches the pattern"
    else:
        return [path]
    if not files:
        raise FileNotFoundError(f"{what}; check the path")
    return files


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
