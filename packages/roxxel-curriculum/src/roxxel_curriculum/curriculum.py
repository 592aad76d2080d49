"""Curriculum: the declaration of a run's data, checked when it is constructed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from roxxel_curriculum._arguments import (
    checked_count,
    checked_overlap,
    checked_phases,
    checked_seed,
    merged_skips,
)
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._plan.declaration import Declaration
from roxxel_curriculum._plan.planner import make_plan
from roxxel_curriculum._plan.solver import solve, solve_with_earlier_longest
from roxxel_curriculum._resume import resume
from roxxel_curriculum._sources import checked_sources
from roxxel_curriculum.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._fields import Field
    from roxxel_curriculum._plan.declaration import Solution
    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase, Skip
    from roxxel_curriculum.phase import Phase
    from roxxel_curriculum.policy import Policy


class Curriculum:
    """Which corpora a run reads, in which phases, under which rules.

    A declaration: constructing it reads no tokens. A schedule that cannot be met is an
    error here, before the first step.

    Args:
        primary_streamer: The primary source, named `"self"` in weights. A reader with
            versions is copied, bound to the version it has now: later appends, and
            attributes set later, do not reach the copy.
        phases: In the order they are trained.
        mix_streamers: Further sources by name.
        longest: Length of the longest sequence that the sources are cut for; that of
            the longest phase by default. It is fixed from the first step to the last,
            and the state of a run contains it.
        policies: What a source does when it has run out, by name: `"drop"` (the default
            of the sources in `mix_streamers`), `"repeat"` (the default of the primary,
            without a limit), the number of epochs to read at most, `"stop"`, or a
            `Policy`.
        max_epochs: Epochs of any source beyond which a schedule is an error.
        overlap: Tokens shared by neighbouring windows: with 1, the last token of a
            window is the first of its neighbour, and every token is predicted once.
        skips: Pairs `(at, count)`: before training step `at`, skip the data of `count`
            steps. Phases count training steps.

    Raises:
        TypeError: An argument has the wrong type, or a source is not a token reader.
        CurriculumError: The schedule cannot be met, or a source holds tokens that int32
            cannot; the message says why, with the numbers, and what would fit. If only
            a run that started before the longest phase was added can meet the schedule,
            `sampler` and `plan` raise this when they get no state.
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
        sources = checked_sources(primary_streamer, mix_streamers, policies)
        names = [source.name for source in sources]
        self._declaration = Declaration(
            sources,
            checked_phases(phases, names),
            checked_count("longest", longest),
            checked_overlap(overlap),
            merged_skips(skips),
            checked_count("max_epochs", max_epochs),
        )
        # Set if this curriculum can resume a run but cannot start one: the reason.
        self._refusal: str | None = None
        try:
            self._solution = solve(self._declaration)
        except CurriculumError as error:
            solution = solve_with_earlier_longest(self._declaration)
            if solution is None:
                raise
            self._solution, self._refusal = solution, str(error)

    def __repr__(self) -> str:
        names = ", ".join(self.source_names)
        return (
            f"Curriculum({len(self._declaration.phases)} phases, "
            f"{self.total_steps} steps, sources {names})"
        )

    @property
    def phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases in steps, up to where a policy stops the run."""
        return self._solution.phases

    @property
    def total_steps(self) -> int:
        """Training steps of the run."""
        return self._solution.total_steps

    @property
    def longest(self) -> int:
        """Length of the longest sequence that the sources are cut for."""
        return self._solution.longest

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary (`"self"`) first."""
        return self._solution.source_names

    def plan(self, seed: int = 0, state: Mapping[str, Any] | None = None) -> Plan:
        """Return what every phase reads from every source; reads no tokens.

        Args:
            seed: Seed of the run. The plan records it; the numbers do not depend on it.
            state: State of a run whose rest is planned; see `sampler`.

        Raises:
            StateMismatch: The past in the state is not that of this curriculum.
            CurriculumError: The schedule cannot be met.
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
            seed: Any integer; the order depends on it.
            state: What `Sampler.state` returned for the run to resume. It holds
                `longest`, the past phases, and the version of each source: a corpus
                that has grown since is read as it was then. The phase that contains the
                step of the state may be edited in place: its new `weights` hold from
                that step on, and its `steps` count from the start of the phase.
            fields: Fields of a batch; with more than `"tokens"` a batch is a dict.
            check: `"blocks"` verifies the checksum of every block of tokens that is
                read, as `Roxxel(check="blocks")` does. `"headers"` reads the sources as
                they were given.

        Raises:
            StateMismatch: The past in the state is not that of this curriculum.
            CurriculumError: The schedule cannot be met, or a source has no checksums.
            ValueError: A field or `check` is unknown.
        """
        seed = checked_seed(seed)
        return Sampler(self._solved(seed, state), seed, fields, check)

    def _solved(self, seed: int, state: Mapping[str, Any] | None) -> Solution:
        if state is not None:
            return resume(self._declaration, seed, state)
        if self._refusal is not None:
            raise CurriculumError(self._refusal)
        return self._solution
