"""Curriculum: the declaration of a run's data, checked when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from roxxel_curriculum._arguments import (
    checked_count,
    checked_overlap,
    checked_phases,
    checked_seed,
    checked_sources,
    merged_skips,
)
from roxxel_curriculum._declaration import Declaration, solve, solve_as_begun
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._planner import make_plan
from roxxel_curriculum._resume import solve_from
from roxxel_curriculum._sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._declaration import SolvedRun
    from roxxel_curriculum._fields import Field
    from roxxel_curriculum._phase import Phase, ResolvedPhase
    from roxxel_curriculum._plan import Plan
    from roxxel_curriculum._policy import Policy
    from roxxel_curriculum._solved import Skip


class Curriculum:
    """Which corpora a run reads, in which phases, under which rules.

    A declaration: nothing is read and nothing is drawn. What cannot be met is an error
    here, before the first step.

    Args:
        primary_streamer: The primary source, named `"self"` in weights.
        phases: In the order they are trained.
        mix_streamers: Further sources by name.
        longest: Tokens of the longest sample the run is laid out for; the longest phase
            by default. A run keeps it from its first step to its last, and its state
            brings it.
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
            and what would fit. Where only a run begun before the longest phase was
            added can meet it, `sampler` and `plan` raise this if they get no state.
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
        self._declaration = Declaration(
            checked_sources(primary_streamer, mix_streamers, policies),
            checked_phases(phases),
            checked_count("longest", longest),
            checked_overlap(overlap),
            merged_skips(skips),
            checked_count("max_epochs", max_epochs),
        )
        # Why a run cannot begin with this; set where one can go on with it.
        self._refusal: str | None = None
        try:
            self._schedule = solve(self._declaration)
        except CurriculumError as error:
            schedule = solve_as_begun(self._declaration)
            if schedule is None:
                raise
            self._schedule, self._refusal = schedule, str(error)

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
        seed = checked_seed(seed)
        return make_plan(self._solved(seed, state), seed)

    def sampler(
        self,
        seed: int,
        state: Mapping[str, Any] | None = None,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler:
        """Bind the declaration to its data and a seed.

        Args:
            seed: Any integer of the shuffle; part of what makes the order.
            state: What `Sampler.state` gave for a run to go on with: it brings the
                sizes fixed at the start and the past phases as they were. A phase that
                the state's step lies in may be edited in place: its `weights` hold, and
                its `steps` count, from the state's step on.
            fields: What a batch holds; with more than `"tokens"` it is a dict.
            check: `"blocks"` reads each corpus with `Roxxel(check="blocks")`: every
                block of tokens is compared with its checksum whenever it is read.
                `"headers"` reads the sources as they were given.

        Raises:
            StateMismatch: The state's past is not this curriculum's.
            CurriculumError: The schedule cannot be met, or a source has no checksums.
            ValueError: A field is unknown, or `check` is.
        """
        seed = checked_seed(seed)
        sampler = Sampler(self._solved(seed, state), seed, fields, check)
        if state is not None:
            sampler.check(state)
        return sampler

    def _solved(self, seed: int, state: Mapping[str, Any] | None) -> SolvedRun:
        if state is not None:
            return solve_from(self._declaration, seed, state)
        if self._refusal is not None:
            raise CurriculumError(self._refusal)
        return self._schedule
