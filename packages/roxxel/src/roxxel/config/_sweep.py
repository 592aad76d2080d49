"""Which blends a sweep tries: its file, and what follows from it and the sources.

Shares are multiples of 0.0001 that sum to 1, so a config shows them as they are. The
sources are in the order of their fingerprints, so names do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from roxxel_store.arguments import Amount, Count, Rule, check, nearest, read

from roxxel.config._declaration import ConfigError, ProxyConfig, RunConfig
from roxxel.config._parse import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Weights = dict[str, float]
"""Shares by source."""

Blend = tuple[tuple[float, ...], ...]
"""The shares of the sources in each phase, in one order of the sources."""

_UNITS = 10_000
_MOST_OF_A_GRID = 10_000
_MOST_DRAWS = 1000


@dataclass(frozen=True)
class Drawn:
    """Blends drawn at random around the natural shares of the sources.

    Attributes:
        number: How many.
        concentration: How close draws are to the natural shares: 1 draws from nearly
            all blends, 100 stays close.
        seed: Seed of the draws. A larger `number` keeps the blends of a smaller one.
        each_phase: Whether to draw the blend of each phase independently.

    >>> Drawn(24).concentration
    10.0
    """

    number: Count
    concentration: Amount = 10.0
    seed: Annotated[int, Rule(at_least=0)] = 0
    each_phase: bool = False

    def __post_init__(self) -> None:
        check(self, ConfigError)


@dataclass(frozen=True)
class Grid:
    """All blends whose shares are multiples of one share.

    Attributes:
        parts: Number of equal parts of a blend: with 4, shares are multiples of 0.25.
        least: The least share that every source has.

    >>> Grid(4).least
    0.0
    """

    parts: Count
    least: Annotated[float, Rule(at_least=0)] = 0.0

    def __post_init__(self) -> None:
        check(self, ConfigError)


@dataclass(frozen=True)
class SweepConfig:
    """The content of the file of a sweep.

    Attributes:
        file: Path of the file.
        base: The run for which you want a blend.
        folder: Folder of the sweep: its runs, its table and its page.
        proxy: How small the proxy is that each blend trains.
        blends: Blends that the file gives: one of each phase, or one for all.
        drawn: Blends drawn at random; None for none.
        grid: Blends on a grid; None for none.
        target: Weight of each held-out set by name; empty if all count alike.
        least_rank: Least rank correlation with which a law may recommend a blend.

    >>> SweepConfig.least_rank
    0.7
    """

    file: Path
    base: RunConfig
    folder: Path
    proxy: ProxyConfig
    blends: tuple[tuple[Weights, ...], ...] = ()
    drawn: Drawn | None = None
    grid: Grid | None = None
    target: Mapping[str, float] = field(default_factory=dict[str, float])
    least_rank: float = 0.7


_Share = Annotated[float, Rule(at_least=0)]
_Weights = Annotated[Mapping[str, _Share], Rule(is_filled=True)]


@dataclass(frozen=True)
class BlendTable:
    """One blend of a sweep, as its file writes it.

    Attributes:
        weights: Shares by source, or a list of such tables, one for each phase.
    """

    weights: Annotated[
        _Weights | Annotated[tuple[_Weights, ...], Rule(is_filled=True)],
        Rule(
            must_be="a table of shares by source, 0 or above, or a list of such "
            "tables, one for each phase"
        ),
    ]


@dataclass(frozen=True)
class SweepFile(ProxyConfig):
    """The tables of the file of a sweep, without the run that it names.

    Attributes:
        config: The config of the run, relative to the file.
        save_path: Folder of the sweep; by default the file's name without its suffix.
        blends: As in `SweepConfig`, with the names that the file gives.
        drawn: As in `SweepConfig`.
        grid: As in `SweepConfig`.
        target: As in `SweepConfig`.
        least_rank: As in `SweepConfig`.

    >>> SweepFile(scale=0.1, config="run.toml", grid=Grid(4)).least_rank
    0.7
    """

    config: str = field(kw_only=True)
    save_path: str | None = None
    blends: tuple[BlendTable, ...] = ()
    drawn: Drawn | None = None
    grid: Grid | None = None
    target: Mapping[str, _Share] = field(default_factory=dict[str, float])
    least_rank: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.blends or self.drawn or self.grid):
            raise ConfigError(
                "the file tries no blend; write [drawn] with number = 24, [grid] or "
                "[[blends]]"
            )


def sweep_table(content: str) -> SweepFile:
    """Return what the file of a sweep declares.

    Raises:
        ConfigError: It is not TOML, a key is unknown, or a value is wrong.
    """
    try:
        return read(SweepFile, parsed(content))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def sweep_from(found: SweepFile, file: Path, base: RunConfig) -> SweepConfig:
    """Return the sweep of a file, over the run of the config that it names.

    Raises:
        ConfigError: The base does not fit, or the folder is a file.
    """
    _check_base(base)
    folder = file.parent / (found.save_path or file.stem)
    if folder.is_file():
        raise ConfigError(
            f"its folder {folder} is a file; write save_path, or let the "
            "name of the sweep's file end with .toml"
        )
    return SweepConfig(
        file=file,
        base=base,
        folder=folder,
        proxy=ProxyConfig(found.scale, found.tokens, found.seed),
        blends=tuple(_blend(x.weights, base, n) for n, x in enumerate(found.blends)),
        drawn=found.drawn,
        grid=found.grid,
        target=found.target,
        least_rank=found.least_rank,
    )


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


def check_known(name: str, known: list[str], where: str, file: str) -> None:
    """Raise ConfigError for an unknown name; the message suggests the nearest one.

    >>> try:
    ...     check_known("cod", ["web", "code"], "target", "run.toml")
    ... except ConfigError as error:
    ...     print(error)
    target names 'cod', which run.toml does not have; did you mean 'code'?
    """
    if name in known:
        return
    hint = nearest(name, known) or f"it has {', '.join(known)}"
    raise ConfigError(f"{where} names {name!r}, which {file} does not have; {hint}")


def _check_base(base: RunConfig) -> None:
    base.needed("model")
    if base.proxy is not None:
        raise ConfigError(
            f"{base.file} is a proxy itself; leave [proxy] to the sweep, which needs "
            "the big run"
        )
    if not base.held_out:
        raise ConfigError(
            f"{base.file} has no held-out set, and a sweep compares blends by its "
            "loss; write [eval]"
        )
    for n, phase in enumerate(base.schedule.phases):
        if phase.epochs is not None:
            raise ConfigError(
                f"phases.{n} of {base.file} lasts {phase.epochs:g} epochs of the "
                "primary, so its length depends on the blend; give it tokens"
            )


def _blend(
    weights: Mapping[str, float] | tuple[Mapping[str, float], ...],
    base: RunConfig,
    number: int,
) -> tuple[Weights, ...]:
    """Return the weights of each phase; one table gives a single entry."""
    several = isinstance(weights, tuple)
    tables = weights if isinstance(weights, tuple) else (weights,)
    phases = len(base.schedule.phases)
    if several and len(tables) != phases:
        raise ConfigError(
            f"blends.{number}.weights has {len(tables)} tables, and {base.file} has "
            f"{phases} phases; give one for each, or one table for all"
        )
    known = list(base.sources)
    for table in tables:
        for name in table:
            check_known(name, known, f"blends.{number}.weights", str(base.file))
        if not sum(table.values()):
            raise ConfigError(
                f"blends.{number}.weights are all 0; give one source a share"
            )
    return tuple(map(dict, tables))


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
