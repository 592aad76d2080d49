"""A folder on a local disk that holds copies of shards from buckets.

The name of a copy is the digest of its shard. So corpora and versions share copies, and
the copy of a replaced shard is never read for the new one. A copy is complete: its
downloader verifies a hidden draft, and then renames the draft.

A process that downloads holds the lock of the folder. Only its user removes copies, and
other files of the folder stay: a user may name a folder that holds files of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from roxxel_store.arguments import as_integer
from roxxel_store.files import drafted_name
from roxxel_store.locks import open_lock
from roxxel_store.urls import check_on_disk, expanded

_COPY = re.compile(r"([0-9a-f]{64})\.rox")
_FREE_SHARE = 0.05
"""Share of the disk that stays free if the user sets no limit."""


def cache_size(num_bytes: int) -> int:
    """Return the maximum size of a cache folder.

    Raises:
        TypeError: The size is not an integer.
        ValueError: The size is less than 1.
    """
    return as_integer(
        "cache_bytes", num_bytes, 1, what="an integer such as 200 << 30 (200 GiB)"
    )


def cache_path(folder: str | os.PathLike[str]) -> str:
    """Return the absolute path of a cache folder.

    Raises:
        ValueError: The text is empty or a URL.
    """
    text = os.fspath(folder)
    remedy = "pass the path of a folder on a local disk"
    if not text:
        raise ValueError(f"cache is {text!r}; {remedy}")
    check_on_disk(text, f"cannot be a cache; {remedy}")
    return str(expanded(text).absolute())


class CacheFolder:
    """A folder of copies of shards, with at most `most_bytes` in all its files.

    With `most_bytes=None`, 5 % of the disk stays free. The constructor makes the
    folder.

    Raises:
        OSError: The folder cannot be made, written or locked.
    """

    def __init__(self, path: str, most_bytes: int | None) -> None:
        self.path = Path(path)
        self.lock = self.path / "download.lock"
        self._most_bytes = most_bytes
        self.path.mkdir(parents=True, exist_ok=True)
        os.close(open_lock(self.lock))  # An error if copies cannot be written.

    def path_of(self, digest: str) -> Path:
        """Return the path of the copy of a shard."""
        return self.path / f"{digest}.rox"

    def digests(self) -> set[str]:
        """Return the digests of the shards that have copies."""
        names = (each.name for each in self.path.iterdir())
        return {match[1] for match in map(_COPY.fullmatch, names) if match}

    def make_room(self, num_bytes: int) -> bool:
        """Remove the drafts of killed processes; return whether a copy fits.

        The caller holds the lock of the folder, so nobody writes a draft.
        """
        used = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    drafted = drafted_name(entry.name)
                    if drafted is not None and _COPY.fullmatch(drafted):
                        Path(entry).unlink()
                    else:
                        used += entry.stat(follow_symlinks=False).st_size
        if self._most_bytes is not None:
            return used + num_bytes <= self._most_bytes
        disk = shutil.disk_usage(self.path)
        return disk.free - num_bytes >= _FREE_SHARE * disk.total
