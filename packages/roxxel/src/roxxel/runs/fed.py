"""The data of two runs, and the first step and row in which they differ.

The digests in two logs narrow down where batches differ, and the places of a batch
follow from the logs by arithmetic. Corpora are opened only for steps in which the runs
read different places, or different versions of a corpus: to compare the tokens, and to
name the documents. If its corpora are missing, a run is compared by its places alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_ckpt import CheckpointError
from roxxel_curriculum import recorded_sampler
from roxxel_curriculum.sampler import recorded_plan
from roxxel_format.naming import named_documents
from roxxel_train import RunFolderError

from roxxel.runs.compared import Parting

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from roxxel_curriculum import Sampler
    from roxxel_format import TokenReader

    from roxxel.runs.run import Run

_MOST_REASONS = 4


class Digests(NamedTuple):
    """What the digests of two logs say about the data.

    Attributes:
        num_rows: Rows with an equal digest.
        equal: Steps that the last of these rows covers.
        other: Step of the first row whose digests differ, and its two digests; None if
            no digest differs.

    Example:
        >>> Digests(2, 20, None).equal
        20
    """

    num_rows: int
    equal: int
    other: tuple[int, str, str] | None


class Fed(NamedTuple):
    """What `compare_fed` found.

    Attributes:
        partings: The first difference of the tokens, and the first difference of the
            loss masks.
        num_steps: Steps of which the data are known to be equal.
        unknown: What could not be compared, and why; empty if all was.

    Example:
        >>> Fed((), 8, "").num_steps
        8
    """

    partings: tuple[Parting, ...]
    num_steps: int
    unknown: str


def compare_fed(a: Run, b: Run, num_steps: int, digests: Digests) -> Fed:
    """Find the first step and row whose batches differ between two runs.

    Args:
        a: A run.
        b: Another run.
        num_steps: Steps that both have trained.
        digests: What the digests of their logs say.

    Example:
        >>> from roxxel.runs.run import open_run
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.run_log import RunLog
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(999), [Phase(4, 2, 8)])
        >>> sampler = curriculum.sampler(0)
        >>> with RunLog("run", sampler) as log:
        ...     log.record(0, sampler.batch(0))
        >>> run = open_run("run")
        >>> compare_fed(run, run, 1, Digests(1, 1, None)).num_steps
        1
    """
    try:
        one, other = _Data(a, num_steps), _Data(b, num_steps)
    except (OSError, ValueError, CheckpointError) as error:
        if digests.other is None:
            unknown = "" if digests.equal == num_steps else str(error)
            return Fed((), digests.equal, unknown)
        reason = f"which row differs is not known: {error}"
        parting = _by_digest(digests.equal, *digests.other, [reason])
        return Fed((parting,), digests.equal, "")
    search = _Search(one, other)
    tokens = _compare_tokens(search, num_steps, digests)
    # The masks may part first, or in the same step as the tokens: one step more.
    masks = _compare_masks(search, min(tokens.num_steps + 1, num_steps))
    return Fed(
        (*tokens.partings, *masks.partings),
        min(tokens.num_steps, masks.num_steps),
        tokens.unknown or masks.unknown,
    )


def _compare_tokens(search: _Search, num_steps: int, digests: Digests) -> Fed:
    if digests.other is None:
        planned = search.changes.step
        if planned is None:
            return Fed((), num_steps, "")
        return search.fed("tokens", max(digests.equal, planned), num_steps)
    fed = search.fed("tokens", digests.equal, digests.other[0])
    if fed.partings:
        return fed
    why = fed.unknown or (
        "the corpora give both runs the same tokens now, so one of them was fed "
        "others; ask `roxxel verify --data` which"
    )
    parting = _by_digest(digests.equal, *digests.other, [*search.reasons, why])
    return Fed((parting,), digests.equal, "")


def _compare_masks(search: _Search, num_steps: int) -> Fed:
    first = search.first_other_mask
    if first is None or first >= num_steps:
        return Fed((), num_steps, "")
    return search.fed("loss_mask", first, num_steps)


def _by_digest(
    equal: int, step: int, one: str, other: str, reasons: Iterable[str]
) -> Parting:
    """Return a difference that is only known to lie between two rows of the log."""
    between = f"digest of the steps {equal} to {step - 1}"
    return Parting("data", equal, between, (one, other), tuple(reasons))


class _Data:
    """The data of a run: its places by arithmetic, its tokens if corpora open."""

    def __init__(self, run: Run, num_steps: int) -> None:
        data = run.files.data()
        self.run = run
        self.unread = ""
        self.places = recorded_sampler(data.state, None)
        if num_steps > self.places.total_steps:
            raise RunFolderError(
                f"{run.path}: its log has {num_steps} steps, and its newest start "
                f"plans {self.places.total_steps}"
            )
        state = self.places.state(num_steps)
        self.plan = recorded_plan(state)
        self.withdrawn: list[Any] = state.get("without", [])
        self.columns = {
            each["name"]: each["loss_mask"]
            for each in data.state["sources"]
            if each.get("loss_mask") is not None
        }
        contents = run.fingerprints()
        self.contents = np.array([contents[x] for x in self.places.source_names])

    @cached_property
    def corpora(self) -> dict[str, TokenReader]:
        return self.run.corpora()

    @cached_property
    def reader(self) -> Sampler | None:
        """The sampler that reads tokens; None, with `unread`, if a corpus is gone."""
        has_masks = self.run.has_masks or self.withdrawn
        try:
            return self.run.sampler(
                ("tokens", "loss_mask") if has_masks else ("tokens",)
            )
        except (OSError, ValueError, CheckpointError) as error:
            self.unread = str(error)
            return None

    def place(self, step: int, row: int) -> str:
        windows = self.places.windows(step)
        if row >= windows.start.size:
            return f"no such row, of {windows.start.size}"
        source = self.places.source_names[int(windows.source[row])]
        text = f"{source} tokens [{windows.start[row]}, {windows.stop[row]})"
        if self.reader is None:
            return text
        documents = self.reader.locate(step, row).documents
        return f"{text}, {named_documents(self.corpora[source], documents)}"

    def token(self, step: int, row: int, column: int) -> str:
        windows = self.places.windows(step)
        source = self.places.source_names[int(windows.source[row])]
        token = int(windows.start[row]) + column
        corpus = self.corpora[source]
        documents = corpus.document_spans(token, token + 1)[:, 0].tolist()
        return f"token {token}, {named_documents(corpus, documents)}"


class _Search:
    """Finds the first step and row in which two runs read different values."""

    def __init__(self, a: _Data, b: _Data) -> None:
        self._both = a, b
        self.changes = a.plan.diff(b.plan)
        self.reasons = self.changes.causes[:_MOST_REASONS]

    @property
    def _readers(self) -> tuple[Sampler, Sampler] | None:
        """The samplers that read tokens; None if one run has none."""
        a, b = (each.reader for each in self._both)
        return None if a is None or b is None else (a, b)

    @cached_property
    def first_other_mask(self) -> int | None:
        """The first step from which the loss masks may differ; None if none does."""
        a, b = self._both
        if a.columns != b.columns:
            return 0
        steps = [
            each["step"]
            for each in (*a.withdrawn, *b.withdrawn)
            if (each in a.withdrawn) != (each in b.withdrawn)
        ]
        return min(steps, default=None)

    def fed(self, name: str, start: int, stop: int) -> Fed:
        """Compare a field, step by step in `[start, stop)`, until a value differs."""
        unread = ""
        for step in range(start, stop):
            try:
                row = self._row(step) if name == "tokens" else self._other(name, step)
            except _UnreadError as error:
                unread = unread or str(error)
                continue
            if row is not None:
                return Fed((self._parting(step, row, name),), step, "")
        return Fed((), start if unread else stop, unread)

    def _parting(self, step: int, row: int, name: str) -> Parting:
        a, b = self._both
        one, other = a.place(step, row), b.place(step, row)
        what = f"row {row}"
        if one == other and self._readers is not None:
            # The places are the same, so the first other value says more.
            x, y = (_field(each, name, step)[row] for each in self._readers)
            column = int(np.flatnonzero(x != y)[0])
            what = f"other {name} in row {row} ({one}), first"
            one, other = a.token(step, row, column), b.token(step, row, column)
        return Parting("data", step, what, (one, other), self.reasons)

    def _row(self, step: int) -> int | None:
        """Return the first row of a step with different tokens; read if necessary."""
        a, b = self._both
        x, y = a.places.windows(step), b.places.windows(step)
        count = min(x.start.size, y.start.size)
        moved = (x.start[:count] != y.start[:count]) | (
            x.stop[:count] != y.stop[:count]
        )
        other = a.contents[x.source[:count]] != b.contents[y.source[:count]]
        if x.start.size == y.start.size and not (moved | other).any():
            # A withdrawn range of tokens is 0 in a batch.
            first = self.first_other_mask
            is_same = first is None or step < first
            return None if is_same else self._other("tokens", step)
        if self._readers is not None:
            return self._other("tokens", step)
        if moved.any():
            return int(np.argmax(moved))
        if x.start.size != y.start.size:
            return count
        raise self._unread()

    def _other(self, name: str, step: int) -> int | None:
        """Return the first row of a step in which a field of the batch differs."""
        if self._readers is None:
            raise self._unread()
        one, other = (_field(each, name, step) for each in self._readers)
        if one.shape[1] != other.shape[1]:
            return 0
        count = min(len(one), len(other))
        rows = np.flatnonzero((one[:count] != other[:count]).any(axis=1))
        if rows.size:
            return int(rows[0])
        return None if len(one) == len(other) else count

    def _unread(self) -> _UnreadError:
        return _UnreadError(next(each.unread for each in self._both if each.unread))


def _field(reader: Sampler, name: str, step: int) -> npt.NDArray[Any]:
    batch = reader.batch(step)
    if isinstance(batch, dict):
        return batch[name]
    return batch if name == "tokens" else np.ones_like(batch)


class _UnreadError(Exception):
    """A corpus that a comparison needs cannot be opened."""
