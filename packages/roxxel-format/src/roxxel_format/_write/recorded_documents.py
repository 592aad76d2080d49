"""Documents that add to the metadata of the shards into which they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordedDocuments(ABC):
    """Documents that add metadata to the last shard of a write."""

    @abstractmethod
    def __iter__(self) -> Iterator[object]:
        """Yield the documents."""

    @abstractmethod
    def note(self, number: int, num_tokens: int) -> None:
        """Note the tokens of a document, separator included, before it is written."""

    @abstractmethod
    def metadata(self) -> dict[str, object]:
        """Return the metadata to add, after the last document."""
