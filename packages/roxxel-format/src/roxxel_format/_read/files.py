"""The interface to files that are read, on a disk or in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import numpy as np
    import numpy.typing as npt


class OpenFile(Protocol):
    """An open file: its bytes as copies (`read`), views and arrays.

    If `is_mapped`, views and arrays are a map of the file. Otherwise each call fetches
    the bytes. A file that changes after it was opened raises ShardError.
    """

    path: str
    num_bytes: int
    is_mapped: bool

    def check_size(self) -> None:
        """Raise ShardError if the size changed.

        Does nothing for a file whose method `read` checks the size.
        """
        ...

    def changed(self) -> ShardError:
        """Return the error for a file that changed while it was open."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes `[start, stop)`."""
        ...

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)`."""
        ...

    def array(
        self, dtype: np.dtype[Any], count: int, byte_offset: int
    ) -> npt.NDArray[Any]:
        """Return items of the file, read-only, shape `(count,)`."""
        ...

    def will_need(self, start: int, stop: int, *, is_urgent: bool = False) -> None:
        """Prefetch the bytes `[start, stop)`."""
        ...

    def is_cold(self, byte_offset: int) -> bool:
        """Return whether reading a byte would wait for a disk, or may do so."""
        ...

    def read_at_random(self, start: int, stop: int) -> None:
        """Advise that the bytes `[start, stop)` will not be read in order."""
        ...


class Files(Protocol):
    """Opens the files of one corpus.

    `is_remote` is true while any shard is read by ranges. `copies` are the numbers of
    the shards of a bucket that have copies on a disk.
    """

    @property
    def copies(self) -> Container[int]:
        """Numbers of the shards of a bucket that have copies on a disk."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether any shard is read by ranges."""
        ...

    def open(self, path: str, num_bytes: int | None = None) -> OpenFile:
        """Open a file.

        `num_bytes` is the size that the manifest or an earlier opening declares; for a
        file on a disk, it is not used.
        """
        ...

    def will_open(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Prefetch the ranges that opening a file reads."""
        ...

    def release(self) -> None:
        """Forget what was prefetched."""
        ...


def missing_file(path: str) -> ShardError:
    """Return the error for a file that a manifest lists and that is gone."""
    return ShardError(
        f"{path}: the file is missing, because the corpus was replaced or compacted, "
        "the column was replaced, or the file was removed; open the corpus again (a "
        "compacted one has the same values), or restore the file"
    )
