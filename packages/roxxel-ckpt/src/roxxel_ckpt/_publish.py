"""One attempt to write a step on a disk that all processes share.

Each process writes into a directory of its own, and publishes the finished files into
the directory of the attempt. Process 0 commits: it writes the file that describes the
step, and renames the directory. Another kind of storage needs another class with these
methods, and nothing else.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from roxxel_ckpt._folder import (
    COMMIT_FILE,
    STAGED,
    Folder,
    sync_directory,
    write_synced,
)

if TYPE_CHECKING:
    from pathlib import Path


class DiskAttempt:
    """One attempt to write a step.

    Args:
        folder: The folder of the checkpoints.
        step: The step.
        name: Hexadecimal digits, different for every attempt: a process that was too
            late for one attempt cannot write into the next.
        process: Index of this process.
    """

    def __init__(self, folder: Folder, step: int, name: str, process: int) -> None:
        self._folder, self._step = folder, step
        self._directory = folder.path / f"{step}.{name}{STAGED}"
        self.staging = self._directory / f"process-{process}"

    def create(self) -> None:
        """Make the empty staging directory of this process.

        Raises:
            OSError: The system refuses.
        """
        self.staging.mkdir(parents=True)

    def publish(self) -> None:
        """Move the staged files of this process to the files of all processes.

        Raises:
            OSError: A file cannot be moved.
        """
        for entry in list(self.staging.iterdir()):
            _merge(entry, self._directory / entry.name)
        sync_directory(self._directory)
        shutil.rmtree(self.staging)

    def commit(self, text: str) -> None:
        """Write the description of the step and show the step, on process 0.

        Raises:
            OSError: The disk refuses.
        """
        write_synced(self._directory / COMMIT_FILE, text)
        sync_directory(self._directory)
        self._folder.show(self._directory, self._step)

    def discard(self) -> None:
        """Remove the attempt, on process 0, as far as the disk allows it."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._directory)


def _merge(source: Path, target: Path) -> None:
    """Rename a file or directory; merge a directory into one that exists already."""
    try:
        source.rename(target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for entry in list(source.iterdir()):
            _merge(entry, target / entry.name)
        sync_directory(target)
