"""Curriculum: the declaration of a run's data, checked when it is made."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._declaration import Declaration, solve
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._phase import Phase, ResolvedPhase
from roxxel_curriculum._planner import make_plan
from roxxel_curriculum._policy import DROP, REPEAT, Policy, parse_policy
from roxxel_curriculum._resume import solve_from
from roxxel_curriculum._sampler import Sampler
from roxxel_curriculum._solved import PRIMARY, Skip
from roxxel_curriculum._source import Source, check_sources

if TYPE_CHECKING:
    from roxxel_format import TokenReader

    from roxxel_curriculum._fields import Field
    from roxxel_curriculum._plan import Plan


class Curriculum:
    """Which corpora a run reads, in which phases, under which rules.

    A declaration: nothing is read and nothing is drawn. What cannot be met is an error
    here, before the first step.

    Args:
        primary_streamer: The primary source, named `"self"` in weights.
        phases: In the order they are trained.
        mix_streamers: Further sources by name.
        longest: Tokens of the longest sample the run is laid out for; the longest phase
            by default. A run keeps it from its first step to its last.
        policies: What a source does when it has run out, by name: `"drop"` (the default
            of the sources in `mix_streamers`), `"repeat"` (the default of the primary,
            without a limit), a number of epochs to repeat up to, `"stop"`, or a
            `Policy`.
        max_epochs: Epochs of any source beyond which a schedule is an error.
        overlap: Tokens shared by neighbouring windows: with 1, the last token of a
            window is the first of its neighbour, and every token is predicted once.
        skips: Pairs `(at, count)`: before training step `at`, pass over the data of
            `count` steps. Phases count training steps.

    Raises:
        TypeError: An argument is of the wrong type.
        CurriculumError: The schedule cannot be met; the message says why, in numbers,
            and what would fit.
    """

    def __init__(
        self,
        primary_streamer: TokenReader,
        phases: Iterable[Phase],
        mix_streamers: Mapping[str, TokenReader] | None = None,
        *,
        longest: int | None = None,
        policies: Mapping[str, Policy | str | int] | None = None,
        max_epochs: int | None = None,
        overlap: int = 0,
        skips: Iterable[Skip | tuple[int, int]] = (),
    ) -> None:
        sources = _sources(primary_streamer, mix_streamers or {}, policies or {})
        check_sources(sources)
        if overlap not in (0, 1):
            raise CurriculumError(f"overlap must be 0 or 1 tokens, got {overlap!r}")
        self._declaration = Declaration(
            sources,
            _checked_phases(phases),
            _optional_count("longest", longest),
            int(overlap),
            _merged_skips(skips),
            _optional_count("max_epochs", max_epochs),
        )
        self._schedule = solve(self._declaration)

    def __repr__(self) -> str:
        names = ", ".join(self.source_names)
        return (
            f"Curriculum({len(self._declaration.phases)} phases, "
            f"{self.total_steps} steps, sources {names})"
        )

    @property
    def phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases, their lengths in steps, up to where a policy stops the run."""
        return self._schedule.resolved_phases()

    @property
    def total_steps(self) -> int:
        """Training steps of the run."""
        return self._schedule.total_steps

    @property
    def longest(self) -> int:
        """Tokens of the longest sample that the run is laid out for."""
        return self._schedule.longest

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary (`"self"`) first."""
        return tuple(source.name for source in self._declaration.sources)

    def plan(self, seed: int = 0, state: Mapping[str, Any] | None = None) -> Plan:
        """Return what every phase takes from every source; reads no tokens.

        Args:
            seed: Seed of the run; recorded, the numbers are the same for every seed.
            state: State of a run to plan the rest of; see `sampler`.
        """
        schedule = (
            self._schedule
            if state is None
            else solve_from(self._declaration, _checked_seed(seed), state)
        )
        return make_plan(schedule, _checked_seed(seed))

    def sampler(
        self,
        seed: int,
        state: Mapping[str, Any] | None = None,
        fields: Iterable[Field] = ("tokens",),
    ) -> Sampler:
        """Bind the declaration to its data and a seed.

        Args:
            seed: Any integer of the shuffle; part of what makes the order.
            state: What `Sampler.state` gave for a run to go on with: it brings the
                sizes fixed at the start and the past phases as they were. A phase that
                the state's step lies in may be edited in place: its `weights` hold, and
                its `steps` count, from the state's step on.
            fields: What a batch holds; with more than `"tokens"` it is a dict.

        Raises:
            StateMismatch: The state's past is not this curriculum's.
            CurriculumError: The rest of the schedule cannot be met.
            ValueError: A field is unknown.
        """
        seed = _checked_seed(seed)
        if state is None:
            return Sampler(self._schedule, seed, fields)
        schedule = solve_from(self._declaration, seed, state)
        sampler = Sampler(schedule, seed, fields)
        sampler.check(state)
        return sampler


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    try:
        return operator.index(seed)
    except TypeError as error:
        raise TypeError(f"seed must be an integer, got {seed!r}") from error


def _sources(
    primary: Any, mix: Mapping[str, Any], policies: Mapping[str, Any]
) -> tuple[Source, ...]:
    if not isinstance(cast("Any", mix), Mapping):
        raise TypeError(
            f"mix_streamers must map names to token readers, got {type(mix).__name__}"
        )
    if PRIMARY in mix:
        raise CurriculumError(
            f"mix_streamers has a source named {PRIMARY!r}, which names the primary; "
            "give it another name"
        )
    for name in mix:
        if not isinstance(cast("Any", name), str) or not name:
            raise TypeError(f"a source's name must be a non-empty str, got {name!r}")
    names = [PRIMARY, *mix]
    if not isinstance(cast("Any", policies), Mapping):
        raise TypeError(
            f"policies must map source names to policies, got {type(policies).__name__}"
        )
    for name in policies:
        if name not in names:
            raise CurriculumError(
                f"policies name unknown source {name!r}; "
                f"the sources are {', '.join(map(repr, names))}"
            )
    return tuple(
        Source(name, reader, parse_policy(policies.get(name, default), name))
        for name, reader, default in (
            (PRIMARY, primary, REPEAT),
            *((name, reader, DROP) for name, reader in mix.items()),
        )
    )


def _checked_phases(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    if not isinstance(cast("Any", phases), Iterable):
        raise TypeError(
            f"phases must be a list of Phase, got {type(phases).__name__}; "
            "write [Phase(steps, batch_size, seq_len)]"
        )
    checked = tuple(phases)
    if not checked:
        raise CurriculumError("a curriculum needs at least one phase, got none")
    for index, phase in enumerate(checked):
        if not isinstance(cast("Any", phase), Phase):
            raise TypeError(
                f"phase {index} is a {type(phase).__name__}; "
                "write Phase(steps, batch_size, seq_len)"
            )
    return checked


def _optional_count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer or None, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer or None, got {value!r}") from error
    if number < 1:
        raise CurriculumError(f"{name} must be at least 1, got {number}")
    return number


def _merged_skips(skips: Iterable[Any]) -> tuple[Skip, ...]:
    merged: dict[int, int] = {}
    for skip in skips:
        try:
            at, count = (skip.at, skip.steps) if isinstance(skip, Skip) else skip
            at, count = operator.index(at), operator.index(count)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"a skip is a pair of integers (at, count), got {skip!r}"
            ) from error
        if at < 0 or count < 1:
            raise CurriculumError(
                f"a skip is (at, count), at >= 0 and count >= 1, got ({at}, {count})"
            )
        merged[at] = merged.get(at, 0) + count
    return tuple(Skip(at, count) for at, count in sorted(merged.items()))
