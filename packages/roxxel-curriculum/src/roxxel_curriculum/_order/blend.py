"""Assign each sample of a blend to a source, in proportion to the weights.

The sources are the leaves of a Huffman tree over the weights. Every other node has two
children. Its number p is the share of its samples that the lighter child gets, rounded
to a multiple of 2**-48. Of its first m samples, a node assigns `round(m p)` to the
lighter child and the rest to the heavier child. A child's error is at most half a
sample, plus its parent's error times the child's share. So all splits add at most two
samples of error for any number of sources. The rounding of p adds less than 0.6 samples
in a run of 10**14 samples. So the count of a source stays within three samples of its
exact share. Counts are computed from the root to the leaves. The index of a source's
k-th sample is computed from the leaf to the root, with one exact division per node. All
numbers are integers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEAL = 2**15
"""Largest number of samples in a call of `deal`; `MAX_DEAL << 48` must fit 64 bits."""

_BITS = 48
_ONE = 1 << _BITS
_HALF = _ONE >> 1
_OFFSETS = np.arange(MAX_DEAL + 1, dtype=np.int64)
_OFFSETS.flags.writeable = False  # `deal` returns views of this array
_UNSIGNED_OFFSETS = _OFFSETS.view(np.uint64)
_SHIFT = np.uint64(_BITS)


class Portion(NamedTuple):
    """The samples that one source has in a range `[first, stop)` of a blend.

    `offsets` ascend and count from the start of the range. They may be read-only.
    """

    source: str
    offsets: npt.NDArray[np.int64]
    given: int  # samples of the source before the range


@dataclass(frozen=True, slots=True)
class _Split:
    share: int  # share of the lighter child, in units of 2**-48
    light: _Node
    heavy: _Node


_Node: TypeAlias = "_Split | str"


class Blend:
    """An endless sequence of samples, each assigned to a source by weight.

    `weights` are positive integers by source name, in any order. Ties are broken by
    name: `order_names` gives it, or else it is the source's own name.
    """

    __slots__ = ("_paths", "_root")

    def __init__(
        self, weights: Mapping[str, int], order_names: Mapping[str, str] | None = None
    ) -> None:
        # Names break ties between weights, so the order of `weights` has no effect.
        names = order_names or {}
        nodes: list[tuple[int, str, _Node]] = [
            (weight, names.get(name, name), name) for name, weight in weights.items()
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

    def __contains__(self, source: str) -> bool:
        """Return whether the blend draws from a source."""
        return source in self._paths

    def counts(self, num_samples: int) -> dict[str, int]:
        """Return the number of samples of each source in the first `num_samples`."""
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

    def sample_index(self, source: str, rank: int) -> int:
        """Return the index in the blend of the source's sample `rank`, both from 0."""
        index = rank
        for share, is_light in self._paths[source]:
            reach = index * _ONE + _HALF
            index = -(-reach // share) - 1 if is_light else reach // (_ONE - share)
        return index

    def deal(self, first: int, num_samples: int) -> list[Portion]:
        """Assign samples `[first, first + num_samples)`, at most `MAX_DEAL` of them."""
        portions: list[Portion] = []
        stack: list[tuple[_Node, int, npt.NDArray[np.int64]]] = [
            (self._root, first, _OFFSETS[:num_samples])
        ]
        while stack:
            node, given, offsets = stack.pop()
            count = offsets.size
            if not count:
                continue
            if isinstance(node, str):
                portions.append(Portion(node, offsets, given))
                continue
            light, remainder = divmod(given * node.share + _HALF, _ONE)
            lights = _UNSIGNED_OFFSETS[: count + 1] * np.uint64(node.share)
            lights += np.uint64(remainder)
            lights >>= _SHIFT
            is_light = lights[1:] != lights[:-1]
            stack.append((node.light, light, offsets[is_light]))
            stack.append((node.heavy, given - light, offsets[~is_light]))
        return portions
