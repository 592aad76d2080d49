"""From tokens and documents of a corpus to the shards that hold them, and back."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from roxxel_format._read.shard import Shard


@dataclass(frozen=True, slots=True)
class CorpusIndex:
    """What is known of a corpus from the heads and feet of its shards.

    Numbers are Python's own, which are quicker than numpy's one at a time.

    Attributes:
        shards: In order.
        bounds: First token of each shard, then the number of tokens.
        joined: For each shard, whether its first document began in the shard before.
        first_own: For each shard, the first document that begins in it or later; then
            the number of documents.
        dtype: Item type of all shards.
        value_range: Least and greatest token of integer dtypes, else None.
    """

    shards: tuple[Shard, ...]
    bounds: tuple[int, ...]
    joined: tuple[bool, ...]
    first_own: tuple[int, ...]
    dtype: np.dtype[Any]
    value_range: tuple[int, int] | None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> CorpusIndex:
        """Index the shards of a corpus.

        Raises:
            ShardError: They hold items of different types.
        """
        first = shards[0].layout
        name = first.head.dtype_name
        bounds, first_own = [0], [0]
        joined: list[bool] = []
        seen: list[int] = []
        goes_on = False
        for shard in shards:
            layout = shard.layout
            if layout.head.dtype_name != name:
                raise ShardError(
                    f"{shard.path}: holds {layout.head.dtype_name}, but "
                    f"{shards[0].path} holds {name}; open them as two corpora"
                )
            is_joined = goes_on and layout.first_is_continued
            goes_on = layout.last_continues
            joined.append(is_joined)
            bounds.append(bounds[-1] + layout.num_tokens)
            first_own.append(first_own[-1] + layout.num_documents - is_joined)
            if layout.num_tokens:
                seen += layout.min_value, layout.max_value
        is_integer = first.value_range is not None
        return cls(
            tuple(shards),
            tuple(bounds),
            tuple(joined),
            tuple(first_own),
            first.dtype,
            (min(seen, default=0), max(seen, default=0)) if is_integer else None,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the corpus."""
        return self.bounds[-1]

    @property
    def num_documents(self) -> int:
        """Documents of the corpus; one that was split over shards counts once."""
        return self.first_own[-1]

    def shard_of(self, token: int) -> int:
        """Return the shard that holds a token, `0 <= token < num_tokens`."""
        return bisect_right(self.bounds, token) - 1

    def shard_of_document(self, document: int) -> tuple[int, int]:
        """Return where a document begins: shard, and document of that shard."""
        shard = bisect_right(self.first_own, document) - 1
        local = document - self.first_own[shard] + self.joined[shard]
        return shard, local

    def fingerprint(self) -> str:
        """Return a hex digest of the shards' contents, in order; 32 digits."""
        digest = blake2b(b"roxxel corpus 1", digest_size=16)
        for shard in self.shards:
            digest.update(shard.layout.content_digest)
        return digest.hexdigest()
