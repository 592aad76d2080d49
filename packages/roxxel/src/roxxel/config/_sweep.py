"""The file of a sweep: which blends to try, on which run, and how small."""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - `keys_of` reads the types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec import Meta
from roxxel_store.arguments import nearest
from roxxel_train.settings import table_of

from roxxel.config._declaration import ConfigError, ProxyConfig, RunConfig
from roxxel.config._toml import checked, given, keys_of, parsed

if TYPE_CHECKING:
    from pathlib import Path

Weights = dict[str, float]
"""Shares by source."""


@dataclass(frozen=True)
class Drawn:
    """Blends drawn at random around the natural shares of the sources.

    Attributes:
        number: How many.
        concentration: How close they are to the natural shares: 1 tries nearly every
            blend, 100 stays near.
        seed: Of the draws. A larger `number` keeps the blends of a smaller one.
        each_phase: Draw the blend of each phase on its own.

    >>> Drawn(24).concentration
    10.0
    """

    number: int = field(metadata={"at_least": 1})
    concentration: float = field(default=10.0, metadata={"above": 0})
    seed: int = field(default=0, metadata={"at_least": 0})
    each_phase: bool = False


@dataclass(frozen=True)
class Grid:
    """All blends whose shares are multiples of one share.

    Attributes:
        parts: Into how many equal parts the blend is cut: with 4, shares are multiples
            of 0.25.
        least: The least share of every source in it.

    >>> Grid(4).least
    0.0
    """

    parts: int = field(metadata={"at_least": 1})
    least: float = 0.0


@dataclass(frozen=True)
class SweepConfig:
    """The content of the file of a sweep.

    Attributes:
        file: Path of the file.
        base: The run whose blend is wanted.
        folder: Folder of the sweep: its runs, its table and its page.
        proxy: How small a part of the run each blend trains.
        blends: Blends that the file gives: one of each phase, or one for all.
        drawn: Blends drawn at random; None for none.
        grid: Blends on a grid; None for none.
        target: How much each held-out set counts, by name; empty for all alike.
        least_rank: Least rank correlation of a law that may recommend a blend.

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


_Share = Annotated[float, Meta(ge=0)]
_Weights = Annotated[dict[str, _Share], Meta(min_length=1)]
_Blend = table_of(
    "Blend",
    {
        "weights": Annotated[
            _Weights | Annotated[tuple[_Weights, ...], Meta(min_length=1)],
            Meta(
                description=(
                    "a table of shares by source, 0 or above, or a list of such "
                    "tables, one for each phase"
                )
            ),
        ]
    },
    required=["weights"],
)
_KEYS = {
    "config": Annotated[str, Meta(min_length=1)],
    "save_path": Annotated[str, Meta(min_length=1)],
    **keys_of(ProxyConfig),
    "blends": tuple[_Blend, ...],
    "drawn": table_of("Drawn", keys_of(Drawn), required=["number"]),
    "grid": table_of("Grid", keys_of(Grid), required=["parts"]),
    "target": dict[str, _Share],
    "least_rank": float,
}
_Sweep = table_of("Sweep", _KEYS, required=["config"])


def sweep_table(content: str) -> dict[str, Any]:
    """Return the keys of the file of a sweep, with their types checked.

    Raises:
        ConfigError: It is not TOML, a key is unknown, or a value has the wrong type.
    """
    return given(checked(parsed(content), _Sweep))


def sweep_from(found: dict[str, Any], file: Path, base: RunConfig) -> SweepConfig:
    """Return the sweep of checked keys, over the run of the config that they name.

    Raises:
        ConfigError: A value is out of range, or the base does not fit.
    """
    proxy = ProxyConfig(**{n: found[n] for n in keys_of(ProxyConfig) if n in found})
    own = {name: found[name] for name in ("target", "least_rank") if name in found}
    for name, kind in (("drawn", Drawn), ("grid", Grid)):
        if name in found:
            own[name] = kind(**given(found[name]))
    if not {"blends", "drawn", "grid"} & found.keys():
        raise ConfigError(
            "the file tries no blend; write [drawn] with number = 24, [grid] or "
            "[[blends]]"
        )
    _check_finite("least_rank", found.get("least_rank", SweepConfig.least_rank))
    for name, share in found.get("target", {}).items():
        _check_finite(f"target.{name}", share)
    _check_base(base, file)
    return SweepConfig(
        file=file,
        base=base,
        folder=file.parent / found.get("save_path", file.stem),
        proxy=proxy,
        blends=tuple(
            _blend(each.weights, base, n)
            for n, each in enumerate(found.get("blends", ()))
        ),
        **own,
    )


def _check_base(base: RunConfig, file: Path) -> None:
    if base.model is None:
        raise ConfigError(f"{base.file} has no model, which training needs; write one")
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
    if len(base.sources) < 2:
        raise ConfigError(
            f"{base.file} has one source, so there is no blend to choose; give it "
            "another"
        )
    for n, phase in enumerate(base.schedule.phases):
        if phase.epochs is not None:
            raise ConfigError(
                f"phases.{n} of {base.file} lasts {phase.epochs:g} epochs of the "
                "primary, so its length depends on the blend; give it tokens"
            )
    if file.stem == file.name:
        raise ConfigError("the name has no suffix; call it sweep.toml")


def _blend(weights: Any, base: RunConfig, number: int) -> tuple[Weights, ...]:
    """Return the weights of each phase; of one table, a single entry."""
    several = not isinstance(weights, dict)
    tables = cast("tuple[Weights, ...]", weights if several else (weights,))
    phases = len(base.schedule.phases)
    if several and len(tables) != phases:
        raise ConfigError(
            f"blends.{number}.weights has {len(tables)} tables, and {base.file} has "
            f"{phases} phases; give one for each, or one table for all"
        )
    known = source_names(base)
    for table in tables:
        for name in table:
            check_known(name, known, f"blends.{number}.weights", str(base.file))
            _check_finite(f"blends.{number}.weights.{name}", table[name])
        if "self" in table and _shown("self", base) in table.keys() - {"self"}:
            raise ConfigError(
                f"blends.{number}.weights names the primary twice, as self and as "
                f"{_shown('self', base)!r}; give it one share"
            )
        if not sum(table.values()):
            raise ConfigError(
                f"blends.{number}.weights are all 0; give one source a share"
            )
    return tuple(
        {_shown(name, base): table[name] for name in table} for table in tables
    )


def _check_finite(key: str, share: float) -> None:
    if not math.isfinite(share):
        raise ConfigError(f"{key} is {share:g}; give a finite number")


def source_names(base: RunConfig) -> list[str]:
    """Return the names of the sources of a run, with that of its primary."""
    return [_shown(name, base) for name in base.sources]


def _shown(name: str, base: RunConfig) -> str:
    return base.schedule.primary if name == "self" else name


def check_known(name: str, known: list[str], where: str, file: str) -> None:
    """Raise ConfigError unless a name is known; it says the nearest that is.

    >>> try:
    ...     check_known("cod", ["web", "code"], "target", "run.toml")
    ... except ConfigError as error:
    ...     print(error)
    target names 'cod', which run.toml does not have; did you mean 'code'?
    """
    if name in {*known, "self"}:
        return
    hint = nearest(name, known) or f"it has {', '.join(known)}"
    raise ConfigError(f"{where} names {name!r}, which {file} does not have; {hint}")
