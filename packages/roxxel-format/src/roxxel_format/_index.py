"""From tokens and documents of a corpus to the shards that hold them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from roxxel_format._shard import Shard


@dataclass(frozen=True, slots=True)
class CorpusIndex:
    """What is known of a corpus from the heads and feet of its shards.

    Attributes:
        shards: In order.
        bounds: First token of each shard, then the number of tokens; int64.
        joined: For each shard, whether its first document began in the shard before.
        first_own: For each shard, the first document that begins in it or later; then
            the number of documents; int64.
        dtype: Item type of all shards.
        value_range: Least and greatest token of integer dtypes, else None.
    """

    shards: tuple[Shard, ...]
    bounds: npt.NDArray[np.int64]
    joined: npt.NDArray[np.bool_]
    first_own: npt.NDArray[np.int64]
    dtype: np.dtype[Any]
    value_range: tuple[int, int] | None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> CorpusIndex:
        """Index the shards of a corpus.

        Raises:
            ShardError: They hold items of different types.
        """
        layouts = [shard.layout for shard in shards]
        name = layouts[0].head.dtype_name
        for shard, layout in zip(shards, layouts, strict=True):
            if layout.head.dtype_name != name:
                raise ShardError(
                    f"{shard.path}: holds {layout.head.dtype_name}, but "
                    f"{shards[0].path} holds {name}; open them as two corpora"
                )
        # Lists: most often there is one shard, and a generator takes longer to make.
        bounds = [0, *accumulate([layout.num_tokens for layout in layouts])]
        joined = [False]
        for before, layout in pairwise(layouts):
            joined.append(before.last_continues and layout.first_is_continued)
        own = map(sub, [layout.num_documents for layout in layouts], joined)
        first_own = [0, *accumulate(own)]
        value_range = layouts[0].value_range
        if value_range is not None:
            filled = [layout for layout in layouts if layout.num_tokens]
            low = min([layout.min_value for layout in filled], default=0)
            high = max([layout.max_value for layout in filled], default=0)
            value_range = low, high
        return cls(
            tuple(shards),
            np.array(bounds, np.int64),
            np.array(joined, np.bool_),
            np.array(first_own, np.int64),
            layouts[0].dtype,
            value_range,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the corpus."""
        return int(self.bounds[-1])

    @property
    def num_documents(self) -> int:
        """Documents of the corpus; one that was split over shards counts once."""
        return int(self.first_own[-1])

    def shard_of(self, token: int) -> int:
        """Return the shard that holds a token, `0 <= token < num_tokens`."""
        return int(np.searchsorted(self.bounds, token, "right")) - 1

    def shard_of_document(self, document: int) -> tuple[int, int]:
        """Return where a document begins: shard, and document of that shard."""
        shard = int(np.searchsorted(self.first_own, document, "right")) - 1
        local = document - int(self.first_own[shard]) + int(self.joined[shard])
        return shard, local

    def fingerprint(self) -> str:
        """Return a hex digest of the shards' contents, in order; 32 digits."""
        digest = blake2b(b"roxxel corpus 1", digest_size=16)
        for shard in self.shards:
            digest.update(shard.layout.content_digest)
        return digest.hexdigest()
