"""Patterns of files on a disk, such as `wiki_*.rox`, and the order of their matches."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.files import matches_in

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIGITS = re.compile(r"([0-9]+)")


def is_pattern(filepath: str) -> bool:
    """Return whether a path is a pattern, not the name of a file or folder.

    Brackets in the name of an existing file or folder are not a pattern.

    Example:
        >>> is_pattern("wiki_*.rox"), is_pattern("wiki.rox")
        (True, False)
    """
    return glob.has_magic(filepath) and glob.has_magic(_below_folder(filepath)[1])


def _below_folder(filepath: str) -> tuple[Path, str]:
    """Return the deepest existing folder of a path, and the rest of the path."""
    path = Path(filepath)
    if os.path.lexists(path):
        return path, ""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    return folder, str(path.relative_to(folder))


def matches_of(pattern: str) -> tuple[str, list[str]]:
    """Return the folder in which a pattern begins, and what matches it.

    The matches are the visible files and folders, in natural order.
    """
    folder, rest = _below_folder(pattern)
    return str(folder), visible(matches_in(folder, rest))


def visible(paths: Iterable[Path]) -> list[str]:
    """Return the visible paths in natural order."""
    return in_natural_order(
        str(path) for path in paths if not path.name.startswith(".")
    )


def in_natural_order(paths: Iterable[str]) -> list[str]:
    """Return paths, sorted; digits in names compare as numbers.

    Example:
        >>> in_natural_order(["a_10", "a_9"])
        ['a_9', 'a_10']
    """

    def key(path: str) -> tuple[list[int | str], str]:
        # Every second part is a run of digits.
        parts = enumerate(_DIGITS.split(path))
        return [int(part) if index % 2 else part for index, part in parts], path

    return sorted(paths, key=key)
