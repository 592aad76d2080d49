"""Paths that name a corpus, made independent of the working folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

OnePath: TypeAlias = "str | os.PathLike[str]"
Filepath: TypeAlias = "OnePath | Sequence[OnePath]"


def absolute(filepath: Filepath) -> str | tuple[str, ...]:
    """Return the path or paths, independent of the working folder; touches no file.

    Raises:
        TypeError: It is no path, and no list of paths.
        ValueError: A path is empty.
    """
    # As os.PathLike tells it, which is slow when it is first asked.
    if isinstance(filepath, str) or hasattr(type(filepath), "__fspath__"):
        return _absolute_path(cast("OnePath", filepath))
    try:
        return tuple(
            _absolute_path(path) for path in cast("Sequence[OnePath]", filepath)
        )
    except TypeError:
        raise TypeError(
            f"filepath is {filepath!r}; pass a path, a pattern, or a list of them"
        ) from None


def _absolute_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text:
        raise ValueError('filepath is empty; pass "." for this folder')
    is_posix = type(text) is str and text.startswith("/") and os.name == "posix"
    if is_posix and "//" not in text and "/." not in text:
        return text.rstrip("/") or "/"  # what pathlib gives, in a tenth of its time
    return str(Path(path).absolute())
