"""Find the input files that paths, patterns and folders mean."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format._prepare.tables import files_of_dataset, without_side_files
from roxxel_format._store.corpus_name import visible

if TYPE_CHECKING:
    from collections.abc import Sequence


def expanded(paths: Sequence[str]) -> list[str]:
    """Return the files of paths, patterns and folders, in natural order for each.

    A folder means its visible files, and those of the folders in it. A folder that
    `datasets` saved means its Arrow files. The files beside a `.ds` file, such as its
    index, are left out.
    """
    found: list[str] = []
    for path in paths:
        dataset = None
        if path != "-" and Path(path).is_dir():
            dataset = files_of_dataset(Path(path))
        if dataset is not None:
            files, what = dataset, f"{path}: the dataset has no rows"
        elif path != "-" and Path(path).is_dir():
            inside = visible(each for each in Path(path).rglob("*") if each.is_file())
            is_hidden = [
                any(part[0] == "." for part in Path(each).relative_to(path).parts)
                for each in inside
            ]
            files = [a for a, b in zip(inside, is_hidden, strict=True) if not b]
            what = f"{path}: the folder holds no file"
        elif glob.has_magic(path) and not os.path.lexists(path):
            base = Path(Path(path).anchor)
            matching = base.glob(str(Path(path).relative_to(base)))
            files = visible(each for each in matching if each.is_file())
            what = f"{path}: no file matches the pattern"
        else:
            files, what = [path], ""
        if not files:
            raise FileNotFoundError(f"{what}; check the path")
        found += files
    return without_side_files(found)
