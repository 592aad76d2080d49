"""One new file of a column, with the size and digest that a manifest lists."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from roxxel_store.files import Output

from roxxel_format._spec.manifest import DIGEST_SIZE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self


class ColumnOutput:
    """A new file of a column; without `rename`, the end of a `with` block removes it.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._output = Output(path)
        self._digest = blake2b(digest_size=DIGEST_SIZE)
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._digest.update(data)
        self._output.write(data)
        self._num_bytes += len(data)

    def rename(self) -> tuple[int, str]:
        """Rename the complete file to its final name; return its size and digest."""
        self._output.rename()
        return self._num_bytes, self._digest.hexdigest()
