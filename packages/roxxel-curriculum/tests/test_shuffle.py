"""The shuffle judged as a whole: windows as delivered, against numpy's full shuffle.

All figures are means over the batches of a run (100, or as many as an epoch holds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._order.rounds import cut_spans
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Starts = npt.NDArray[np.int64]


class Case(NamedTuple):
    num_tokens: int
    longest: int
    seq_len: int
    batch_size: int


CASES = [
    Case(10**6, 257, 257, 16),
    Case(10**6, 1025, 257, 64),
    Case(10**6, 4097, 1025, 16),
    Case(10**7, 1025, 1025, 64),
    Case(10**8, 32769, 1025, 64),
    Case(10**9, 32769, 1025, 512),
    Case(10**9, 32769, 32769, 64),
    Case(10**10, 32769, 4097, 512),
    Case(10**12, 32769, 1025, 512),
    Case(10**12, 32769, 32769, 512),
]


def batches(case: Case) -> list[Starts]:
    """Return the first tokens of the rows of each batch, as a run delivers them."""
    num_batches = min(100, case.num_tokens // case.seq_len // case.batch_size)
    phase = Phase(num_batches, case.batch_size, case.seq_len)
    curriculum = Curriculum(
        PositionReader(case.num_tokens), [phase], longest=case.longest
    )
    sampler = curriculum.sampler(3)
    return [sampler.windows(step).start for step in range(curriculum.total_steps)]


def fully_shuffled(case: Case, num_batches: int) -> list[Starts]:
    """Return the same of numpy's shuffle of all windows."""
    rng = np.random.default_rng(1)
    windows = case.num_tokens // case.seq_len
    wanted = num_batches * case.batch_size
    # Beyond what can be shuffled in memory, drawing with replacement is the same but
    # for one pair in millions.
    order = (
        rng.permutation(windows)
        if windows < 10**7
        else rng.integers(windows, size=wanted)
    )
    starts = order[:wanted] * case.seq_len
    return list(starts.reshape(num_batches, case.batch_size))


def mean(measure: Callable[[Starts], float], of: list[Starts]) -> float:
    return float(np.mean([measure(starts) for starts in of]))


@pytest.fixture(scope="module", params=CASES, ids=str)
def drawn(request: pytest.FixtureRequest) -> tuple[Case, list[Starts], list[Starts]]:
    case: Case = request.param
    ours = batches(case)
    return case, ours, fully_shuffled(case, len(ours))


Drawn = tuple[Case, "list[Starts]", "list[Starts]"]


def test_a_batch_spreads_over_the_corpus_like_a_full_shuffle(drawn: Drawn) -> None:
    case, ours, full = drawn

    def distance(starts: Starts) -> float:
        """Return the Kolmogorov-Smirnov distance from uniform."""
        at = np.sort(starts) / case.num_tokens
        rank = np.arange(at.size + 1) / at.size
        return float(max((at - rank[:-1]).max(), (rank[1:] - at).max()))

    assert mean(distance, ours) <= 1.1 * mean(distance, full)


def test_rows_of_a_batch_are_seldom_near_each_other(drawn: Drawn) -> None:
    case, ours, full = drawn
    spans = cut_spans(case.num_tokens, case.longest, 0).num_spans

    def siblings(starts: Starts) -> float:
        """Return how many other rows lie within the longest sample of a row."""
        at = np.sort(starts)
        left = np.searchsorted(at, at - case.longest, "right")
        right = np.searchsorted(at, at + case.longest, "left")
        return float((right - left - 1).mean())

    limit = 1.1 * ((case.batch_size - 1) / spans + mean(siblings, full))
    assert mean(siblings, ours) <= limit


def test_neighbours_in_the_corpus_seldom_share_a_batch(drawn: Drawn) -> None:
    case, ours, _ = drawn
    spans = cut_spans(case.num_tokens, case.longest, 0).num_spans
    of_round = spans * max(1, case.longest // case.seq_len)

    def neighbours(starts: Starts) -> float:
        """Return the share of rows whose next window of the corpus is there too."""
        return float(np.isin(starts + case.seq_len, starts).mean())

    assert mean(neighbours, ours) <= 2 * case.batch_size / of_round


def test_neighbours_in_the_corpus_are_far_apart_in_the_run() -> None:
    # Within a round the gap of two windows is that of a full shuffle of the round: a
    # third of it in the mean.
    curriculum = Curriculum(
        PositionReader(10**8),
        [Phase(epochs=1, batch_size=16, seq_len=1025)],
        longest=32769,
    )
    sampler = curriculum.sampler(1)
    starts = np.concatenate(
        [sampler.windows(step).start for step in range(curriculum.total_steps)]
    )
    order = np.argsort(starts)
    adjacent = np.diff(starts[order]) == 1025
    gaps = np.abs(np.diff(order))[adjacent]
    of_round = cut_spans(10**8, 32769, 0).num_spans * 31

    assert 0.9 < np.mean(gaps) / (of_round / 3) < 1.1
