"""Keeps the pages of files in the page cache while a benchmark runs.

A virtual machine that returns memory to its host may evict pages that no process has
mapped, even if they were read recently: on the machine of docs/benchmarks.md, after
half a minute. So a loader would find a warm or a cold corpus, depending on its turn.
This module maps the files, so their pages stay.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path


class Held:
    """Maps of whole files, by path."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, folder: Path) -> None:
        """Read the files in a folder into memory, and keep them there."""
        for path in folder.rglob("*"):
            if not path.is_file() or not path.stat().st_size:
                continue
            if path not in self._maps:
                with path.open("rb") as file:
                    self._maps[path] = mmap.mmap(
                        file.fileno(), 0, access=mmap.ACCESS_READ
                    )
            pages = self._maps[path]
            for start in range(0, len(pages), mmap.PAGESIZE):
                pages[start]

    def release(self, folder: Path | None = None) -> None:
        """Release the files of a folder, deleted ones too; None means all folders."""
        for path in list(self._maps):
            if folder is None or path.is_relative_to(folder):
                self._maps.pop(path).close()
