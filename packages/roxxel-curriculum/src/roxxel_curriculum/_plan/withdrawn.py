"""What a run stops learning of each source: documents and tokens, from a step on.

Indices are stored as sorted ranges. A membership test is a binary search, so large sets
hardly slow a batch. In a state, a set is compressed text: about 1.7 bytes for each of a
million indices that are spread evenly.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from roxxel_store.arguments import as_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Integers = npt.NDArray[np.int64]
_EVERY = 0, 2**62  # the range of all indices


class IndexSet:
    """Indices of documents or of tokens, as sorted ranges that do not touch.

    Args:
        starts: First index of each range, in any order.
        stops: One past the last index of each range.

    Attributes:
        digest: Hex digest of the indices.

    Example:
        >>> documents = IndexSet([3, 100], [4, 200])
        >>> len(documents), documents.holds([2, 3, 199]).tolist()
        (101, [False, True, True])
    """

    __slots__ = ("_packed", "_starts", "_stops", "digest")

    def __init__(self, starts: npt.ArrayLike, stops: npt.ArrayLike) -> None:
        first, last = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
        keep = first < last
        order = np.argsort(first[keep], kind="stable")
        first, last = first[keep][order], last[keep][order]
        if first.size:
            reached = np.maximum.accumulate(last)
            begins = np.append(True, first[1:] > reached[:-1])
            first = first[begins]
            last = reached[np.append(np.flatnonzero(begins)[1:] - 1, reached.size - 1)]
        self._starts: _Integers = first
        self._stops: _Integers = last
        self._packed: str | None = None
        self.digest = hashlib.blake2b(
            self._bounds().tobytes(), digest_size=16
        ).hexdigest()

    def __len__(self) -> int:
        """Return the number of indices."""
        return int((self._stops - self._starts).sum())

    def __bool__(self) -> bool:
        return self._starts.size > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest index, and one past the largest; the set is not empty."""
        return int(self._starts[0]), int(self._stops[-1])

    def holds(self, indices: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return for each index whether it is in the set."""
        return self.touches(indices, 1)

    def touches(self, starts: npt.ArrayLike, length: int) -> npt.NDArray[np.bool_]:
        """Return for each window of `length` indices whether it touches the set."""
        first = np.asarray(starts, np.int64)
        if not self._starts.size:
            return np.zeros(first.shape, np.bool_)
        before = np.searchsorted(self._starts, first + length, "left") - 1
        return (before >= 0) & (first < self._stops[before])

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of the set, clipped to `[start, stop)`, in order."""
        first = int(np.searchsorted(self._stops, start, "right"))
        last = int(np.searchsorted(self._starts, stop, "left"))
        bounds = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return [(max(int(a), start), min(int(b), stop)) for a, b in bounds]

    def to_json(self) -> dict[str, Any]:
        """Return the set for JSON: its sizes, and its ranges as compressed text."""
        if self._packed is None:  # pack once: every checkpoint has a state
            # Group the bytes by significance: the high bytes of small differences form
            # long runs of zeros, which compress well.
            steps = np.diff(self._bounds(), prepend=0).astype("<u8")
            planes = steps.view(np.uint8).reshape(-1, 8).T.tobytes()
            self._packed = base64.b85encode(zlib.compress(planes)).decode("ascii")
        return {
            "count": len(self),
            "ranges": int(self._starts.size),
            "packed": self._packed,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> IndexSet:
        """Return the set that `to_json` wrote."""
        planes = zlib.decompress(base64.b85decode(entry["packed"]))
        steps = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<u8")
        bounds = np.cumsum(steps.ravel().astype(np.int64)).reshape(-1, 2)
        return cls(bounds[:, 0], bounds[:, 1])

    def _bounds(self) -> _Integers:
        return np.stack([self._starts, self._stops], axis=1).ravel()


NOTHING = IndexSet((), ())


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a run leaves out of the loss: of one source, from one step on.

    A withdrawal applies until the next withdrawal of the same source. The next one may
    be empty: then the run learns the whole source again.

    Attributes:
        step: First training step that leaves out these documents and tokens.
        source: Name of the source.
        documents: The documents: their `loss_mask` is 0, their tokens stay in the
            batch. `holds(numbers)` returns a bool for each number.
        tokens: The tokens, by index in the source: their `loss_mask` is 0. They are
            not read, and are 0 in the batch, so damaged bytes do not matter.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> without = {"self": [3, 7, "tokens:[512,1024)"]}
        >>> curriculum = Curriculum(
        ...     PositionReader(10_000), [Phase(9, 4, 129)], without=without
        ... )
        >>> (withdrawal,) = curriculum.sampler(0, fields=["loss_mask"]).withdrawals
        >>> withdrawal.step, withdrawal.documents.holds([2, 3]).tolist()
        (0, [False, True])
        >>> withdrawal.amount
        '2 documents and 512 tokens'
    """

    step: int
    source: str
    documents: IndexSet = NOTHING
    tokens: IndexSet = NOTHING

    @property
    def is_empty(self) -> bool:
        """Whether nothing is withdrawn."""
        return not (self.documents or self.tokens)

    @property
    def digest(self) -> str:
        """Digest of the documents and tokens; it does not cover step and source."""
        return self.documents.digest + self.tokens.digest

    @property
    def amount(self) -> str:
        """The numbers of documents and of tokens, as text."""
        return amount(len(self.documents), len(self.tokens))

    def listed(self) -> list[Any]:
        """Return the documents and tokens as `without` of a curriculum takes them.

        Numbers, pairs `[start, stop]` and ranges of tokens, which JSON and TOML hold.
        """
        return [
            *(a if b - a == 1 else [a, b] for a, b in self.documents.within(*_EVERY)),
            *(f"tokens:[{a},{b})" for a, b in self.tokens.within(*_EVERY)),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the withdrawal for the state of a run."""
        return {
            "step": self.step,
            "source": self.source,
            "documents": self.documents.to_json(),
            "tokens": self.tokens.to_json(),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Withdrawal:
        """Return a withdrawal that a checked state records."""
        return cls(
            entry["step"],
            entry["source"],
            IndexSet.from_json(entry["documents"]),
            IndexSet.from_json(entry["tokens"]),
        )


def amount(documents: int, tokens: int) -> str:
    """Return how much is withdrawn, as text: `2 documents and 512 tokens`."""
    counts = {"document": documents, "token": tokens}
    parts = [f"{n:,} {noun}{'s' * (n != 1)}" for noun, n in counts.items() if n]
    return " and ".join(parts) or "nothing"


def continued(
    past: Sequence[Withdrawal],
    declared: Mapping[str, Withdrawal],
    sources: Sequence[str],
    step: int,
) -> tuple[Withdrawal, ...]:
    """Return the past withdrawals, and what the declaration adds at `step`.

    A source adds a withdrawal if the declared one differs from the last past one. The
    past withdrawals are in the order of their steps, each before `step`.
    """
    now = in_force(past, step)
    nothing = {name: Withdrawal(step, name) for name in sources}
    wanted = {name: declared.get(name, nothing[name]) for name in sources}
    return *past, *(
        replace(each, step=step)
        for name, each in wanted.items()
        if each.digest != now.get(name, nothing[name]).digest
    )


def in_force(withdrawals: Sequence[Withdrawal], step: int) -> dict[str, Withdrawal]:
    """Return the withdrawal of each source in a step, without empty ones."""
    found = {each.source: each for each in withdrawals if each.step <= step}
    return {name: each for name, each in found.items() if not each.is_empty}


def checked_document(document: int, source: str, num_documents: int) -> int:
    """Return a document number as an int; raise an error if the source lacks it.

    Raises:
        TypeError: The number is not an integer.
        IndexError: The source has no such document.
    """
    number = as_integer("document", document)
    if not 0 <= number < num_documents:
        raise IndexError(
            f"source {source!r} has no document {number}; it has the documents "
            f"[0, {num_documents})"
        )
    return number


def masked_steps(
    withdrawals: Sequence[Withdrawal],
    source: str,
    is_masked_by: Callable[[Withdrawal], bool],
    stop: int,
) -> tuple[range, ...]:
    """Return the steps before `stop` in which a source's withdrawal passes a test."""
    found: list[range] = []
    since: int | None = None
    for each in withdrawals:
        if each.source != source:
            continue
        is_masked = is_masked_by(each)
        if is_masked and since is None:
            since = each.step
        elif not is_masked and since is not None:
            found.append(range(since, each.step))
            since = None
    if since is not None:
        found.append(range(since, stop))
    return tuple(filter(None, found))


def masked_ranges(
    withdrawals: Sequence[Withdrawal], source: str, start: int, stop: int, total: int
) -> dict[tuple[int, int], tuple[range, ...]]:
    """Return the withdrawn ranges of tokens in `[start, stop)`, with their steps.

    The steps are before `total`. If a range grew, the result has both the smaller and
    the larger range.
    """
    found = {
        span: masked_steps(
            withdrawals,
            source,
            lambda each, span=span: each.tokens.within(*span) == [span],
            total,
        )
        for span in sorted(
            span
            for each in withdrawals
            if each.source == source
            for span in each.tokens.within(start, stop)
        )
    }
    return {span: steps for span, steps in found.items() if steps}
