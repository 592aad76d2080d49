"""The blends that a sweep tries, as a pure function of its file and its sources.

Shares are multiples of 0.0001 that sum to 1, so a config shows them as they are. The
sources are in the order of their fingerprints, so names do not matter.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel.config._declaration import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from roxxel.config._sweep import Drawn, Grid, SweepConfig

    Floats = npt.NDArray[np.float64]

Blend = tuple[tuple[float, ...], ...]
"""The shares of the sources in each phase, in one order of the sources."""

_UNITS = 10_000
_MOST_OF_A_GRID = 10_000
_MOST_DRAWS = 1000


def blends_of(
    sweep: SweepConfig, names: Sequence[str], tokens: Mapping[str, int]
) -> list[Blend]:
    """Return the blends of a sweep, each once: given, on the grid, drawn.

    Args:
        sweep: The file.
        names: Names of the sources, in the order of the shares.
        tokens: Tokens of each source; they give its natural share.

    Raises:
        ConfigError: The grid is empty or too large.
    """
    phases = len(sweep.base.schedule.phases)
    found: list[Blend] = []
    for tables in sweep.blends:
        rows = [_exact(np.array([t.get(n, 0.0) for n in names])) for t in tables]
        found.append(tuple(rows if len(rows) == phases else rows * phases))
    if sweep.grid is not None:
        found += [(row,) * phases for row in _on_grid(sweep.grid, len(names))]
    if sweep.drawn is not None:
        natural = np.array([tokens[name] for name in names], np.float64)
        found += _drawn(sweep.drawn, natural / natural.sum(), phases)
    return list(dict.fromkeys(found))


def _on_grid(grid: Grid, num_sources: int) -> Iterator[tuple[float, ...]]:
    free = grid.parts - num_sources * round(grid.least * grid.parts)
    if free < 0:
        raise ConfigError(
            f"grid.least is {grid.least:g}, and {num_sources} sources of this share "
            "are more than a blend; give less"
        )
    least = round(grid.least * grid.parts)
    # Where the bars stand between `free` parts: Scheffé's simplex lattice.
    places = combinations(range(free + num_sources - 1), num_sources - 1)
    for number, bars in enumerate(places):
        if number == _MOST_OF_A_GRID:
            raise ConfigError(
                f"a grid of {grid.parts} parts over {num_sources} sources has more "
                f"than {_MOST_OF_A_GRID:,} blends; give fewer parts, or [drawn]"
            )
        edges = np.array([-1, *bars, free + num_sources - 1])
        yield _exact((np.diff(edges) - 1 + least).astype(np.float64))


def _drawn(drawn: Drawn, natural: Floats, phases: int) -> list[Blend]:
    """Return Dirichlet draws; `RandomState` draws the same in every NumPy."""
    random = np.random.RandomState(drawn.seed)
    found: list[Blend] = []
    while len(found) < drawn.number:
        rows = [
            _gamma(random, drawn.concentration * natural)
            for _ in range(phases if drawn.each_phase else 1)
        ]
        found.append(tuple(map(_exact, rows * (phases // len(rows)))))
    return found


def _gamma(random: Any, alpha: Floats) -> Floats:
    for _ in range(_MOST_DRAWS):  # A small concentration may draw zeros alone.
        drawn = random.standard_gamma(alpha)
        if drawn.sum():
            return drawn
    raise ConfigError(
        "drawn.concentration is so small that every draw is zero; give 0.1 or more"
    )


def _exact(weights: Floats) -> tuple[float, ...]:
    """Return shares that are multiples of 0.0001 and sum to 1, by largest remainder."""
    wanted = weights / weights.sum() * _UNITS
    units = np.floor(wanted).astype(np.int64)
    order = np.argsort(units - wanted, kind="stable")
    units[order[: _UNITS - units.sum()]] += 1
    return tuple((units / _UNITS).tolist())
