"""A source as a run's state describes it, without its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import ShardError, TokenReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt


class Unread(TokenReader):
    """A source known only by a state; to read its tokens or documents is an error."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry

    @property
    def num_tokens(self) -> int:
        return self._entry["tokens"]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._entry["dtype"])

    @property
    def tokenizer(self) -> str | None:
        return self._entry["tokenizer"]

    @property
    def fingerprint(self) -> str:
        return self._entry["fingerprint"]

    @property
    def unit(self) -> int | None:
        return self._entry.get("unit")

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        raise self._error()

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        del starts, length, dtype, out
        raise self._error()

    def _error(self) -> ShardError:
        return ShardError(
            f"source {self._entry['name']!r} has no reader here, which its tokens and "
            "documents need; give `sources` to `recorded_sampler`"
        )
