"""Laws from a blend to its held-out losses, and how well they predict unseen blends.

`log_linear` has one curve for each held-out loss, c + exp(t . r), where r are the
shares of the sources (Ye et al., *Data Mixing Laws*, arXiv 2403.16952; their factor k
is part of t, because shares sum to 1). `boosted` is gradient-boosted trees (Liu et al.,
*RegMix*, arXiv 2407.01492). A weighted sum of such losses judges a blend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Predict = Callable[[Floats], Floats]
    Law = Callable[[Floats, Floats], Predict]

_FOLDS = 10
_RIDGE = 1e-4
_FLOORS = np.geomspace(0.02, 30, 24)
"""How far the floor c lies below the least loss, in units of the losses' range."""


def log_linear(shares: Floats, losses: Floats) -> Predict:
    """Return the curve in which a loss is a floor plus an exponential of the shares.

    For each of 24 floors, log(loss - floor) is fitted by least squares, weighted so
    that errors count as errors of the loss. The floor with the least error stays. There
    is no start to choose and no local minimum.

    >>> shares = np.array([[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.9, 0.1]])
    >>> losses = 2 + np.exp(shares @ [-1.0, 0.5])
    >>> log_linear(shares, losses)(np.array([[0.7, 0.3]])).round(2).tolist()
    [2.58]
    """
    mean = shares.mean(0)
    rows = np.column_stack([np.ones(len(shares)), shares - mean])
    low, extent = losses.min(), max(np.ptp(losses), 1e-9)
    best = math.inf
    found: tuple[float, Floats] = (0.0, np.zeros(rows.shape[1]))
    penalty = _RIDGE * np.eye(rows.shape[1])
    penalty[0, 0] = 0.0
    for below in _FLOORS:
        floor = low - below * extent
        above = losses - floor
        weights = (above / above.mean()) ** 2
        weighted = rows * weights[:, None]
        slope = np.linalg.solve(
            weighted.T @ rows + penalty * len(rows), weighted.T @ np.log(above)
        )
        error = float(np.square(floor + np.exp(rows @ slope) - losses).sum())
        if error < best:
            best, found = error, (floor, slope)
    floor, slope = found
    return lambda x: floor + np.exp(slope[0] + (x - mean) @ slope[1:])


def boosted(shares: Floats, losses: Floats) -> Predict:
    """Return gradient-boosted trees of scikit-learn, always the same for the same data.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.

    >>> try:
    ...     predict = boosted(np.eye(4), np.arange(4.0))
    ... except ModuleNotFoundError:  # without the extra `sweep`
    ...     predict = log_linear(np.eye(4), np.arange(4.0))
    >>> predict(np.eye(4)).shape
    (4,)
    """
    try:
        from sklearn.ensemble import (  # pyright: ignore[reportMissingTypeStubs]
            GradientBoostingRegressor,
        )
    except ModuleNotFoundError as error:
        what = "the gradient-boosted law"
        raise missing_extra(what, "sklearn", "roxxel", "sweep") from error
    trees: Any = GradientBoostingRegressor(
        n_estimators=150,
        learning_rate=0.08,
        max_depth=2,
        subsample=0.8,
        random_state=0,
    )
    return trees.fit(shares, losses).predict


LAWS: Mapping[str, Law] = {"log-linear": log_linear, "gradient-boosted": boosted}
"""The laws that a sweep tries, by name."""


@dataclass(frozen=True)
class Fit:
    """A fitted law, and how well it predicts blends that it has not seen.

    Attributes:
        name: Name of the law.
        num_blends: Number of blends to which it was fitted.
        error: Root mean square of its errors of the target, cross-validated.
        spread: Standard deviation of the target, which is the error of always
            predicting the mean.
        rank: Spearman's correlation between predicted and measured order,
            cross-validated.
        unseen: The target of each blend, predicted by a law that has not seen it.
        predict: Maps shares (a row for each blend) to each blend's held-out losses.

    >>> shares = np.random.RandomState(0).dirichlet([1, 1], 12)
    >>> losses = 2 + np.exp(shares @ [[-1.0], [0.5]])
    >>> fit = fit_law("log-linear", log_linear, shares, losses, target=np.ones(1))
    >>> fit.rank > 0.9
    True
    """

    name: str
    num_blends: int
    error: float
    spread: float
    rank: float
    unseen: tuple[float, ...] = field(repr=False)
    predict: Predict = field(repr=False)

    def __str__(self) -> str:
        """Return how good the law is, as text."""
        return (
            f"{self.name} law of {self.num_blends} blends: rank correlation "
            f"{self.rank:.2f}, error {self.error:.4f} where blends differ by "
            f"{self.spread:.4f} (cross-validated)"
        )


def least_blends(shares: Floats) -> int:
    """Return how many blends a law needs: two more than its parameters."""
    if not len(shares):
        return 4
    return int(np.linalg.matrix_rank(shares - shares.mean(0))) + 4


def fit_law(name: str, law: Law, shares: Floats, losses: Floats, target: Floats) -> Fit:
    """Fit a law to each held-out loss, and cross-validate the target.

    Args:
        name: The law's name in a report.
        law: Maps the shares of some blends and their losses to the function that fits
            them.
        shares: A row of shares for each blend.
        losses: A row of held-out losses for each blend.
        target: How much each loss counts.
    """
    measured = losses @ target
    unseen = np.empty(len(shares))
    order = np.random.RandomState(0).permutation(len(shares))
    for part in np.array_split(order, min(_FOLDS, len(shares))):
        rest = np.setdiff1d(order, part)
        unseen[part] = _fitted(law, shares[rest], losses[rest])(shares[part]) @ target
    return Fit(
        name,
        len(shares),
        float(np.sqrt(np.square(unseen - measured).mean())),
        float(measured.std()),
        rank_correlation(unseen, measured),
        tuple(unseen.tolist()),
        _fitted(law, shares, losses),
    )


def _fitted(law: Law, shares: Floats, losses: Floats) -> Predict:
    functions = [law(shares, column) for column in losses.T]
    return lambda x: np.column_stack([function(x) for function in functions])


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's rank correlation; 0 if all values of one are equal.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 8.0, 9.0]))
    1.0
    """
    ranks = [_ranks(values) - (len(values) - 1) / 2 for values in (a, b)]
    size = math.sqrt(float(np.square(ranks[0]).sum() * np.square(ranks[1]).sum()))
    return round(float((ranks[0] * ranks[1]).sum()) / size, 12) if size else 0.0


def _ranks(values: Floats) -> Floats:
    """Return the place of each value; equal values share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse]


def best_blend(
    predict: Callable[[Floats], Floats], tried: Floats, starts: Floats, phases: int
) -> Floats:
    """Return the blend with the least predicted target, in the range that was tried.

    From each start, share moves from one source to another of its phase, in smaller
    and smaller steps, as long as the target falls.

    Args:
        predict: Maps rows of shares to the target.
        tried: The blends that were tried, which bound each share.
        starts: Where to begin.
        phases: Number of phases whose blends a row holds.
    """
    low, high = tried.min(0), tried.max(0)
    size = tried.shape[1] // phases
    moves = [
        (phase * size + a, phase * size + b)
        for phase in range(phases)
        for a, b in permutations(range(size), 2)
    ]
    unit = np.zeros((len(moves), tried.shape[1]))
    for row, (a, b) in enumerate(moves):
        unit[row, a], unit[row, b] = -1, 1

    def is_tried(blends: Floats) -> npt.NDArray[np.bool_]:
        return ((blends >= low - 1e-9) & (blends <= high + 1e-9)).all(1)

    def descended(here: Floats) -> tuple[float, Floats]:
        value = float(predict(here[None])[0])
        for step in (0.1, 0.05, 0.02, 0.01, 0.005):
            while True:
                there = here + step * unit
                values = np.where(is_tried(there), predict(there), np.inf)
                best = int(values.argmin())
                if values[best] >= value - 1e-9:
                    break
                here, value = there[best], float(values[best])
        return value, here

    _, found = min(map(descended, starts), key=lambda each: each[0])
    return np.clip(found, 0, 1).round(4)
