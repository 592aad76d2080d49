"""Paths of folders that a run writes to: check them early, and show them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from roxxel_store.urls import expanded, url_of


def cache_folder() -> Path:
    """Return Roxxel's folder in `$XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
        FileNotFoundError: No home folder is known, as in many containers.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise FileNotFoundError(
                "no home folder is known, and XDG_CACHE_HOME is not set"
            ) from error
    return Path(base, "roxxel")


def check_writable(path: str | os.PathLike[str], name: str) -> Path:
    """Return the absolute path of a folder, which the argument `name` gives.

    Raises:
        OSError: The folder can neither be written nor created.
        ValueError: The path is a URL.
    """
    text = os.fspath(path)
    if url_of(path, name) is not None:
        raise ValueError(
            f"{name}={text!r}: is a URL, which cannot be used here; give a folder, or "
            "save_path= a URL as text"
        )
    folder = expanded(path).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{name}={text!r}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name}={text!r}: {nearest} cannot be written; "
            "give another folder or change its permissions"
        )
    return folder


def shown(path: Path | str) -> str:
    """Return a path for a message: relative if it is below the working directory."""
    if isinstance(path, str):
        return path
    with suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
