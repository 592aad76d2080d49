"""Where the rows of a step come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Windows:
    """The tokens behind every row of a step.

    Attributes:
        source: Index into `Sampler.source_names`, int64, shape `(B,)`.
        start: First token in that source, int64, shape `(B,)`.
        stop: One past the last token, int64, shape `(B,)`.
    """

    source: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Location:
    """Where one row of a batch came from.

    Attributes:
        source: Name of the source; `"self"` is the primary.
        start: First token in the source.
        stop: One past the last token.
        documents: Indices of the documents it touches, in order.
    """

    source: str
    start: int
    stop: int
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Upcoming:
    """Windows of one source that steps to come will read.

    Attributes:
        source: Name of the source.
        starts: First token of each window, int64, in the order they will be read.
        length: Tokens of each window.
    """

    source: str
    starts: npt.NDArray[np.int64]
    length: int
