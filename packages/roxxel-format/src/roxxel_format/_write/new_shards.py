"""Shards that are complete but not committed: what a manifest will list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.tables import ColumnTable, ShardTable, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class NewShards:
    """Complete shards and their columns, as a manifest will list them.

    Without documents, there are no shards, and `dtype` and `kind` are None.

    Attributes:
        shards: The shards.
        columns: The columns of the shards, by name.
        dtype: Name of the item type.
        kind: `"text"` or `"tokens"`.
        num_dropped: Characters that the tokenizer left out.
        sync_s: Seconds spent flushing to the disk.

    Example:
        >>> len(NewShards()), NewShards.joined([NewShards()]).sizes
        (0, {})
    """

    shards: ShardTable = field(default_factory=ShardTable)
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    dtype: str | None = None
    kind: str | None = None
    num_dropped: int = 0
    sync_s: float = 0.0

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.shards)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return sum(self.shards.num_tokens)

    @property
    def num_documents(self) -> int:
        """Number of documents; a document in two shards counts once."""
        return sum(self.shards.own_documents())

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each shard and of each file of a column, by name."""
        return sizes_of(self.shards, self.columns)

    @classmethod
    def joined(cls, parts: Iterable[NewShards]) -> NewShards:
        """Join consecutive groups of shards; skip groups without shards."""
        done = [part for part in parts if len(part)]
        if not done:
            return cls()
        shards = ShardTable()
        columns: dict[str, ColumnTable] = {}
        for part in done:
            shards += part.shards
            for name, table in part.columns.items():
                columns[name] = columns[name] + table if name in columns else table
        return cls(
            shards,
            columns,
            done[0].dtype,
            done[0].kind,
            sum(part.num_dropped for part in done),
            sum(part.sync_s for part in done),
        )

    @classmethod
    def parsed(cls, table: Mapping[str, Any]) -> NewShards:
        """Return the shards that `dataclasses.asdict` made a table of."""
        columns = {name: ColumnTable(**each) for name, each in table["columns"].items()}
        shards = ShardTable(**table["shards"])
        others: dict[str, Any] = {**table}
        del others["shards"], others["columns"]
        return cls(shards, columns, **others)
