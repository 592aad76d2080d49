"""Which fields of a row make a document, for the readers of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class RowFields(Protocol):
    """Makes documents from rows: from the `Fields` of a write, or from all texts.

    Without `names`, every field of a row is read. The other attributes are those of
    `Fields`.
    """

    @property
    def text(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def contents(self) -> tuple[str, ...]: ...

    @property
    def needs_rows(self) -> bool: ...

    @property
    def has_mask(self) -> bool: ...

    @property
    def chat(self) -> Any: ...

    def part(self, name: str, /) -> str: ...

    def passed_as(self, name: str, /) -> str: ...

    def document(self, values: Mapping[str, object], /) -> object: ...
