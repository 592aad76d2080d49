"""Which part of a source a proxy reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roxxel_curriculum._order.bijection import make_key, permute


@dataclass(frozen=True)
class Part:
    """Some spans of a version of a source.

    The numbers of the spans follow from this, so a state need not list them.
    """

    fingerprint: str  # of the whole source
    spans: int  # into how many the whole source is cut
    span_tokens: int
    count: int  # spans of the part
    name: str  # of the source in the order
    seed: int

    def chosen(self) -> list[int]:
        """Return the numbers of the spans of the part, rising."""
        key = make_key("proxy", self.seed, self.name)
        return np.sort(permute(np.arange(self.count), self.spans, key)).tolist()
