"""Documents that a run stops learning, each at its own step.

A set of documents is stored as sorted ranges of their numbers. A membership test is a
binary search, so large sets hardly slow a batch. In a state, a set is compressed text:
about 1.7 bytes for each of a million numbers that are spread evenly.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._errors import as_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Integers = npt.NDArray[np.int64]


class DocumentSet:
    """Numbers of documents, as sorted ranges `[start, stop)` that do not touch.

    Args:
        starts: First number of each range, in any order.
        stops: One past the last number of each range.

    Attributes:
        digest: Hex digest of the numbers.

    Example:
        >>> documents = DocumentSet([3, 100], [4, 200])
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
        """Return the number of documents."""
        return int((self._stops - self._starts).sum())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DocumentSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest number, and one past the largest; the set is not empty."""
        return int(self._starts[0]), int(self._stops[-1])

    def holds(self, documents: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return for each document whether it is in the set."""
        numbers = np.asarray(documents, np.int64)
        before = np.searchsorted(self._starts, numbers, "right") - 1
        if not self._starts.size:
            return np.zeros(numbers.shape, np.bool_)
        return (before >= 0) & (numbers < self._stops[before])

    def to_json(self) -> dict[str, Any]:
        """Return the set for JSON: its sizes, and its ranges as compressed text."""
        if self._packed is None:  # pack once: every checkpoint has a state
            # Group the bytes by significance: the high bytes of small differences form
            # long runs of zeros, which compress well.
            steps = np.diff(self._bounds(), prepend=0).astype("<u8")
            planes = steps.view(np.uint8).reshape(-1, 8).T.tobytes()
            self._packed = base64.b85encode(zlib.compress(planes)).decode("ascii")
        return {
            "documents": len(self),
            "ranges": int(self._starts.size),
            "packed": self._packed,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> DocumentSet:
        """Return the set that `to_json` wrote.

        Raises:
            ValueError: The entry contradicts itself.
        """
        num_bytes = 16 * entry["ranges"]
        planes = b""
        if num_bytes:
            # The limit keeps a damaged state from filling the memory.
            unpacking = zlib.decompressobj()
            try:
                packed = base64.b85decode(entry["packed"])
                planes = unpacking.decompress(packed, num_bytes)
            except zlib.error as error:
                raise ValueError(f"its documents are damaged ({error})") from error
        if len(planes) != num_bytes:
            raise ValueError("the recorded number of ranges of documents is wrong")
        steps = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view("<u8")
        bounds = np.cumsum(steps.ravel().astype(np.int64)).reshape(-1, 2)
        found = cls(bounds[:, 0], bounds[:, 1])
        sizes = len(found), found._starts.size
        if sizes != (entry["documents"], entry["ranges"]) or (bounds < 0).any():
            raise ValueError("the recorded number of documents is wrong")
        return found

    def _bounds(self) -> _Integers:
        return np.stack([self._starts, self._stops], axis=1).ravel()


NO_DOCUMENTS = DocumentSet((), ())


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Documents of one source that a run stops learning at a step.

    A withdrawal applies until the next withdrawal of the same source. The next one may
    be empty: then the run learns all documents of the source again.

    Attributes:
        step: First training step whose `loss_mask` is 0 on these documents.
        source: Name of the source.
        documents: The documents; `holds(numbers)` returns a bool for each number.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(
        ...     PositionReader(10_000), [Phase(9, 4, 129)], without={"self": [3, 7]}
        ... )
        >>> (withdrawal,) = curriculum.sampler(0, fields=["loss_mask"]).withdrawals
        >>> withdrawal.step, withdrawal.documents.holds([2, 3]).tolist()
        (0, [False, True])
    """

    step: int
    source: str
    documents: DocumentSet

    def to_json(self) -> dict[str, Any]:
        """Return the withdrawal for the state of a run."""
        return {"step": self.step, "source": self.source, **self.documents.to_json()}


def continued(
    past: Sequence[Withdrawal],
    declared: Mapping[str, DocumentSet],
    sources: Sequence[str],
    step: int,
) -> tuple[Withdrawal, ...]:
    """Return the past withdrawals, and those that the declared sets add at `step`.

    A source adds a withdrawal if its declared set differs from the set before `step`.
    The past withdrawals are in the order of their steps, each before `step`.
    """
    now = in_force(past, step)
    return *past, *(
        Withdrawal(step, name, declared.get(name, NO_DOCUMENTS))
        for name in sources
        if declared.get(name, NO_DOCUMENTS) != now.get(name, NO_DOCUMENTS)
    )


def in_force(withdrawals: Sequence[Withdrawal], step: int) -> dict[str, DocumentSet]:
    """Return the withdrawn documents of each source in a step, without empty sets."""
    found = {each.source: each.documents for each in withdrawals if each.step <= step}
    return {name: documents for name, documents in found.items() if len(documents)}


def checked_document(document: int, source: str, num_documents: int) -> int:
    """Return a document number as an int; raise unless the source has the document.

    Raises:
        TypeError: The number is not an integer.
        IndexError: The source has no such document.
    """
    number = as_integer(document, "document must be an integer")
    if not 0 <= number < num_documents:
        raise IndexError(
            f"source {source!r} has no document {number}; it has the documents "
            f"[0, {num_documents})"
        )
    return number


def masked_steps(
    withdrawals: Sequence[Withdrawal], source: str, document: int, stop: int
) -> tuple[range, ...]:
    """Return the steps before `stop` in which a document is withdrawn."""
    found: list[range] = []
    since: int | None = None
    for each in withdrawals:
        if each.source != source:
            continue
        is_masked = bool(each.documents.holds([document])[0])
        if is_masked and since is None:
            since = each.step
        elif not is_masked and since is not None:
            found.append(range(since, each.step))
            since = None
    if since is not None:
        found.append(range(since, stop))
    return tuple(filter(None, found))


class WithdrawnByStep:
    """The withdrawn documents of each step, by the index of their source."""

    def __init__(
        self, withdrawals: Sequence[Withdrawal], source_names: Sequence[str]
    ) -> None:
        self._steps = sorted({0, *(each.step for each in withdrawals)})
        sets = [in_force(withdrawals, step) for step in self._steps]
        self._sets = [
            {source_names.index(name): found[name] for name in found} for found in sets
        ]

    def at(self, step: int) -> Mapping[int, DocumentSet]:
        """Return the withdrawn documents in a step; sources without any are absent."""
        return self._sets[bisect_right(self._steps, step) - 1]


def recorded_withdrawals(state: Mapping[str, Any]) -> tuple[Withdrawal, ...]:
    """Return the withdrawals that a state records.

    Raises:
        ValueError: An entry contradicts itself.
    """
    return tuple(
        Withdrawal(entry["step"], entry["source"], DocumentSet.from_json(entry))
        for entry in state.get("without", ())
    )
