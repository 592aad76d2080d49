"""Which source each sample of a blend comes from, in exact proportion.

A Huffman tree over the weights splits m samples at each node into `round(m p)` for one
child, the rest for the other, p a multiple of 2**-48. A split adds at most half a
sample of error and scales its parent's by p: every prefix stays within three samples of
its share, for any number of sources (within two, and p's rounding adds less than 0.6
at 10**14 samples). Counts are a walk down, the place of a source's k-th sample is a
walk up with one exact division a node; all in integers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from decimal import Decimal
from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

MAX_DEAL = 2**15
"""Samples dealt in one call: beyond it 2**48 times the offset leaves 64 bits."""

_BITS = 48
_ONE = 1 << _BITS
_HALF = _ONE >> 1
_PLACES = np.arange(MAX_DEAL + 1, dtype=np.int64)
_PLACES.flags.writeable = False  # parts of it are handed out
_OFFSETS = _PLACES.view(np.uint64)
_SHIFT = np.uint64(_BITS)


class Dealt(NamedTuple):
    """The samples of one source within a stretch of a blend.

    Attributes:
        source: Name of the source.
        places: Places in the stretch, ascending, int64; may be shared.
        rank: How many samples the source had given before the first of them.
    """

    source: str
    places: npt.NDArray[np.int64]
    rank: int


@dataclass(frozen=True, slots=True)
class _Split:
    share: int  # of `light`, in units of 2**-48
    light: _Node
    heavy: _Node


_Node: TypeAlias = "_Split | str"


def resolve_weights(weights: Mapping[str, float | Fraction]) -> dict[str, int]:
    """Return the weights above zero as the smallest integers of the same ratio.

    A float stands for the shortest decimal that prints as it, so 0.3 : 0.7 and 3 : 7
    are the same blend.

    Args:
        weights: Non-negative and finite, at least one above zero.
    """
    # Decimals, for a fraction takes three times as long to be made of text.
    ratios = {
        name: (
            Decimal(repr(weight)) if isinstance(weight, float) else weight
        ).as_integer_ratio()
        for name, weight in weights.items()
        if weight
    }
    scale = lcm(*(denominator for _, denominator in ratios.values()))
    whole = {
        name: numerator * (scale // denominator)
        for name, (numerator, denominator) in ratios.items()
    }
    divisor = gcd(*whole.values())
    return {name: weight // divisor for name, weight in sorted(whole.items())}


class Blend:
    """An endless sequence of samples dealt to sources by weight.

    Args:
        weights: Positive integers by source name; their order does not matter.
    """

    __slots__ = ("_paths", "_root")

    def __init__(self, weights: Mapping[str, int]) -> None:
        # Ties by the first name in the node: names are distinct, so nodes never are.
        nodes: list[tuple[int, str, _Node]] = [
            (weight, name, name) for name, weight in weights.items()
        ]
        heapq.heapify(nodes)
        while len(nodes) > 1:
            light, name, light_node = heapq.heappop(nodes)
            heavy, other, heavy_node = heapq.heappop(nodes)
            both = light + heavy
            share = (light * _ONE + both // 2) // both
            node = _Split(max(share, 1), light_node, heavy_node)
            heapq.heappush(nodes, (both, min(name, other), node))
        self._root = nodes[0][2]
        self._paths: dict[str, tuple[tuple[int, bool], ...]] = {}
        stack: list[tuple[_Node, tuple[tuple[int, bool], ...]]] = [(self._root, ())]
        while stack:
            node, path = stack.pop()
            if isinstance(node, str):
                self._paths[node] = path
            else:
                stack.append((node.light, ((node.share, True), *path)))
                stack.append((node.heavy, ((node.share, False), *path)))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, sorted."""
        return tuple(sorted(self._paths))

    def counts(self, num_samples: int) -> dict[str, int]:
        """Return how many of the first samples each source gives."""
        counts: dict[str, int] = {}
        stack: list[tuple[_Node, int]] = [(self._root, num_samples)]
        while stack:
            node, total = stack.pop()
            if isinstance(node, str):
                counts[node] = total
            else:
                light = (total * node.share + _HALF) >> _BITS
                stack.append((node.light, light))
                stack.append((node.heavy, total - light))
        return counts

    def place(self, source: str, rank: int) -> int:
        """Return which sample is the one that `source` gives after `rank` others."""
        for share, is_light in self._paths[source]:
            reach = rank * _ONE + _HALF
            rank = -(-reach // share) - 1 if is_light else reach // (_ONE - share)
        return rank

    def deal(self, first: int, num_samples: int) -> list[Dealt]:
        """Return who gives the samples `[first, first + num_samples)`.

        Args:
            first: First sample, counted from the start of the blend.
            num_samples: At most `MAX_DEAL`.

        Returns:
            One entry for each source that gives any, places counted from `first`.
        """
        dealt: list[Dealt] = []
        stack: list[tuple[_Node, int, npt.NDArray[np.int64]]] = [
            (self._root, first, _PLACES[:num_samples])
        ]
        while stack:
            node, start, places = stack.pop()
            count = places.size
            if not count:
                continue
            if isinstance(node, str):
                dealt.append(Dealt(node, places, start))
                continue
            before, rest = divmod(start * node.share + _HALF, _ONE)
            given = _OFFSETS[: count + 1] * np.uint64(node.share)
            given += np.uint64(rest)
            given >>= _SHIFT
            is_light = given[1:] != given[:-1]
            stack.append((node.light, before, places[is_light]))
            stack.append((node.heavy, start - before, places[~is_light]))
        return dealt
