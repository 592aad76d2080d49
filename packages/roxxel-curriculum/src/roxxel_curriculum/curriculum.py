"""Curriculum: declares what data a run reads; the constructor checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from roxxel_curriculum._arguments import (
    checked_count,
    checked_overlap,
    checked_phases,
    checked_seed,
    merged_skips,
)
from roxxel_curriculum._bind.past import resume
from roxxel_curriculum._bind.sources import checked_sources
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._plan.plan import make_plan
from roxxel_curriculum._plan.solution import Declaration
from roxxel_curriculum._plan.solver import solve, solve_with_earlier_longest
from roxxel_curriculum.sampler import Sampler
from roxxel_curriculum.state import check_form

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._bind.fields import Field
    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import ResolvedPhase, Skip, Solution
    from roxxel_curriculum.phase import Phase
    from roxxel_curriculum.policy import Policy


class Curriculum:
    """Which corpora a run reads, in which phases, under which rules.

    The constructor reads no tokens. It raises if neither a new run nor a run that has
    begun can meet the schedule.

    Args:
        primary_streamer: The primary source, named `"self"` in weights. If a reader
            has versions, the curriculum uses a copy of the current version. Later
            changes to the reader do not affect the copy.
        phases: The phases in training order.
        mix_streamers: Further sources by name.
        longest: Length in tokens of the longest sequence that the sources are cut for;
            by default the largest `seq_len` of the phases. Every batch depends on
            `longest`. The first step of a run fixes `longest`, and the run's state
            records it. If you add a phase with longer sequences and pass no state, the
            default changes and so does every batch. Declare `longest` at the start of a
            run that may get such a phase.
        policies: What happens when a source runs out, by source name: `"drop"` (the
            default of the sources in `mix_streamers`), `"repeat"` (the default of the
            primary), the greatest number of epochs, `"stop"`, or a `Policy`.
        max_epochs: Greatest number of epochs of any source. The constructor raises if
            the schedule needs more.
        overlap: Tokens shared by neighbouring windows, 0 or 1. With 1, the last token
            of a window is the first of the next window, so every token is predicted
            once.
        skips: Pairs `(at, count)`: before training step `at`, skip the data of `count`
            steps. The steps of a phase are training steps, so skips do not shorten it.

    Raises:
        TypeError: An argument has the wrong type, or a source is not a token reader.
        CurriculumError: The sources cannot meet the schedule, or a source holds tokens
            outside the range of int32. If a run that started before its longest phase
            was added can meet the schedule but a new run cannot, the constructor does
            not raise; `sampler` and `plan` raise when they get no state.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> curriculum
        Curriculum(1 phases, 9 steps, sources self)
        >>> curriculum.sampler(seed=42).batch(8).shape
        (4, 129)
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
        self._primary_streamer = primary_streamer
        self._mix_streamers = dict(mix_streamers or {})
        names = [source.name for source in sources]
        self._declaration = Declaration(
            sources,
            checked_phases(phases, names),
            checked_count("longest", longest),
            checked_overlap(overlap),
            merged_skips(skips),
            checked_count("max_epochs", max_epochs),
        )
        # Why a new run cannot meet the schedule; None if it can.
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
    def primary_streamer(self) -> TokenReader:
        """The reader that was passed; the batches come from a copy of its version."""
        return self._primary_streamer

    @property
    def mix_streamers(self) -> dict[str, TokenReader]:
        """The further readers that were passed, by name; empty if there are none."""
        return dict(self._mix_streamers)

    @property
    def phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases with their steps; the last ends where a policy stops the run."""
        return self._solution.phases

    @property
    def total_steps(self) -> int:
        """Training steps of the run."""
        return self._solution.total_steps

    @property
    def longest(self) -> int:
        """Length of the longest sequence that a new run cuts the sources for.

        `Sampler.longest` is the value of a run that has begun.
        """
        return self._solution.longest

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary (`"self"`) first."""
        return self._solution.source_names

    def plan(
        self, seed: int | None = None, state: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return what every phase reads from every source; reads no tokens.

        Args:
            seed: Seed of the run. None takes the seed from the state, or 0 without a
                state. The plan records the seed; its other numbers do not depend on it.
            state: State of the run to plan; None for a new run. See `sampler`.

        Raises:
            StateMismatch: The past in the state differs from that of this curriculum.
            CurriculumError: The sources cannot meet the schedule.
        """
        seed, solution = self._bound(
            0 if state is None and seed is None else seed, state
        )
        return make_plan(solution, seed)

    def sampler(
        self,
        seed: int | None = None,
        state: Mapping[str, Any] | None = None,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler:
        """Return the sampler of a new run, or of the run that wrote `state`.

        Pass the state to inspect the batches of a run that has begun. Without a state,
        the batches are the same only if the schedule of that run was never edited.
        `roxxel_train.data_state("run")` reads the state from the folder of a run.
        `Trainer.sampler` already uses the state.

        Args:
            seed: Any integer; the order depends on it. None takes the seed from the
                state.
            state: What `Sampler.state` returned for the run; None for a new run. The
                state records `longest`, the past phases, and the version of each
                source. If a corpus has grown since, the sampler reads the recorded
                version. You may edit the phase that contains the step of the state: new
                `weights` apply from that step on, and `steps` counts from the start of
                the phase.
            fields: Fields of a batch. Unless `"tokens"` is the only one, a batch is a
                dict.
            check: `"blocks"` verifies the checksum of every block of tokens that the
                sampler reads, as `Roxxel(check="blocks")` does. `"headers"` uses the
                readers as they are.

        Raises:
            StateMismatch: The past in the state differs from that of this curriculum,
                or the seed differs from that of the state.
            CurriculumError: The sources cannot meet the schedule, or `check` is
                `"blocks"` and a source has no checksums.
            TypeError: There is neither a seed nor a state.
            ValueError: A field or `check` is unknown.
        """
        seed, solution = self._bound(seed, state)
        return Sampler(solution, seed, fields, check)

    def _bound(
        self, seed: int | None, state: Mapping[str, Any] | None
    ) -> tuple[int, Solution]:
        """Return the seed and the solution of a new run, or of the run of `state`."""
        if state is not None:
            check_form(state)
            given = checked_seed(state["seed"] if seed is None else seed)
            return given, resume(self._declaration, given, state)
        if seed is None:
            raise TypeError(
                "a sampler needs a seed or the state of a run, got neither; give "
                "seed=0 for a new run, or the state of a run that has begun"
            )
        given = checked_seed(seed)
        if self._refusal is not None:
            raise CurriculumError(self._refusal)
        return given, self._solution
