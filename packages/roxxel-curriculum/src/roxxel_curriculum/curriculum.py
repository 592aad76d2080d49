"""`Curriculum` declares what data a run reads, and checks that the sources suffice.

A `Schedule` is a curriculum without its corpora.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from roxxel_format.scans import Scan
from roxxel_store.arguments import as_integer

from roxxel_curriculum._arguments import (
    Arguments,
    check_all_named,
    checked_phases,
    listed,
    of_sources,
)
from roxxel_curriculum._bind.sources import (
    checked_sources,
    compare_ids,
    notes_on_held_out,
)
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.plan import make_plan
from roxxel_curriculum._plan.proxy import (
    Proxy,
    checked_scale,
    chosen_part,
    epochs_at_ends,
    notes_on_proxy,
    proxy_phases,
)
from roxxel_curriculum._plan.solution import Declaration, Skip, solve
from roxxel_curriculum._withdrawn import (
    check_documents,
    checked_without,
    continued,
    is_listed_path,
    is_path,
    paths_in,
)
from roxxel_curriculum.sampler import Sampler
from roxxel_curriculum.state import as_made, as_read, checked_state, resume

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from roxxel_format import TokenReader

    from roxxel_curriculum._arguments import Documents, Phase, Policy
    from roxxel_curriculum._bind.reading import Field
    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import ResolvedPhase, Solution


class Curriculum:
    """Declares which corpora a run reads, in which phases and under which rules.

    The constructor reads no tokens.

    Args:
        primary_streamer: The primary source, named `"self"` unless `primary` names it.
            If a reader has versions, the curriculum reads a copy at the current
            version, which later changes to the reader do not affect.
        phases: The phases in training order.
        mix_streamers: Further sources by name. The weights of some phase must name
            each source. The weight 0 declares that a source stays unread, for example
            because only past steps of a run read it.
        longest: Sequence length in tokens that determines how sources are cut into
            spans; by default the largest `seq_len` of the phases. Every batch depends
            on `longest`, so the state of a run records the value. Without the state,
            adding a phase with longer sequences changes the default and every batch. If
            a run may get such a phase later, declare `longest` when it starts.
        policies: What happens when a source runs out, by source name: `"drop"` (the
            default of the sources in `mix_streamers`), `"repeat"` (the default of the
            primary), the largest number of epochs, `"stop"`, or a `Policy`.
        max_epochs: Largest number of epochs of any source. A schedule that needs more
            is an error.
        overlap: Number of tokens that neighbouring windows share, 0 or 1. With 1, the
            last token of a window is the first of the next window, so every token is
            predicted once.
        skips: Pairs `(at, count)`: before training step `at`, skip the data of `count`
            steps. Skips do not shorten a phase: its `steps` count training steps.
        without: Documents that the run does not learn, by source: numbers from 0,
            ranges, pairs `[start, stop)`, an array of integers, or the path of a file
            (`.npy`, a text with a number on each line, or the `.json` receipt of
            `roxxel scan`). A list may name files too. The field `"loss_mask"` is 0 on
            their tokens. The tokens stay where they are, so no window moves, and
            nothing else in a batch changes. A model that gets no `"segment_ids"` still
            reads these tokens as the context of later tokens of their row. A list or a
            text file may also have ranges of tokens, such as `"tokens:[512,1024)"`,
            counted in the source. They are masked like documents, but not read: they
            are 0 in every batch, so their bytes may be damaged. If you change `without`
            during a run, the change holds from the step at which the run resumes. The
            run's state records it.
        primary: Name of the primary source, in weights, errors and logs. The name has
            no effect on batches, but a run keeps it: its state records it.
        tokenizers: Name of the tokenizer by source; it replaces what the corpus
            records. Only names are compared; no file is read. Sources whose ids
            certainly mean different text are an error, and the plan notes those that
            record no tokenizer. Declare the tokenizer of such a source if you know it.

    Raises:
        TypeError: An argument has the wrong type, or a source is not a token reader.
        CurriculumError: The sources cannot meet the schedule, no phase names one of
            them, or a source holds tokens outside the range of int32. A run that began
            with a smaller `longest` may be able to meet a schedule that a new run
            cannot: declare that `longest`.

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
        skips: Iterable[tuple[int, int]] = (),
        without: Mapping[str, Documents] | None = None,
        primary: str = PRIMARY,
        tokenizers: Mapping[str, str] | None = None,
    ) -> None:
        given = Arguments(
            phases=listed(phases),
            longest=longest,
            policies=cast("Any", policies or {}),
            max_epochs=max_epochs,
            overlap=overlap,
            skips=listed(skips),
            without={} if without is None else without,
            primary=primary,
            tokenizers=tokenizers or {},
        )
        sources = checked_sources(
            primary_streamer,
            mix_streamers,
            given.policies,
            given.primary,
            given.tokenizers,
        )
        readers = {source.name: source.reader for source in sources}
        self._streamers = {given.primary: primary_streamer, **(mix_streamers or {})}
        self._declaration = Declaration(
            sources,
            checked_phases(given.phases, [source.name for source in sources]),
            given.longest,
            given.overlap,
            _merged(given.skips),
            given.max_epochs,
            checked_without(
                of_sources(given.without, readers, "the withdrawn documents"), readers
            ),
            compare_ids(("source", sources)),
        )
        self._solution = _solved(self._declaration)
        # The curriculum of which this is a proxy, and the arguments of `proxy`.
        self._proxy_of: tuple[Curriculum, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        names = ", ".join(self.source_names)
        return (
            f"Curriculum({len(self._declaration.phases)} phases, "
            f"{self.total_steps} steps, sources {names})"
        )

    @property
    def streamers(self) -> dict[str, TokenReader]:
        """The readers as passed, by name, the primary first.

        Samplers may read copies at a fixed version.
        """
        return dict(self._streamers)

    @property
    def primary_streamer(self) -> TokenReader:
        """The primary reader as passed."""
        return self._streamers[self.primary]

    @property
    def primary(self) -> str:
        """Name of the primary source."""
        return self._declaration.primary

    @property
    def mix_streamers(self) -> dict[str, TokenReader]:
        """The further readers as passed, by name."""
        return {n: x for n, x in self._streamers.items() if n != self.primary}

    @property
    def phases(self) -> tuple[ResolvedPhase, ...]:
        """The phases with known steps, up to where a policy stops the run."""
        return self._solution.phases

    @property
    def total_steps(self) -> int:
        """Number of training steps of the run."""
        return self._solution.total_steps

    @property
    def longest(self) -> int:
        """`longest` of a new run; see `Sampler.longest` for a resumed run."""
        return self._solution.longest

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, the primary first."""
        return self._solution.source_names

    def plan(
        self, seed: int | None = None, state: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return what every phase reads from every source; reads no tokens.

        Args:
            seed: Seed of the run; None for the seed in the state, or 0 without a state.
                Only `Plan.seed` depends on it.
            state: State of the run to plan; None for a new run. See `sampler`.

        Raises:
            StateMismatch: The state and this curriculum differ in data, seed or past
                phases.
            CurriculumError: The sources cannot meet the schedule.
        """
        seed, solution = self._bound(
            0 if state is None and seed is None else seed, state
        )
        return make_plan(solution, seed)

    @overload
    def sampler(
        self,
        seed: int | None = None,
        state: Mapping[str, Any] | None = None,
        fields: tuple[Literal["tokens"]] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler[npt.NDArray[Any]]: ...
    @overload
    def sampler(
        self,
        seed: int | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        fields: tuple[Field, Field, *tuple[Field, ...]],
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler[dict[str, npt.NDArray[Any]]]: ...
    @overload
    def sampler(
        self,
        seed: int | None = None,
        state: Mapping[str, Any] | None = None,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler[Any]: ...
    def sampler(
        self,
        seed: int | None = None,
        state: Mapping[str, Any] | None = None,
        fields: Iterable[Field] = ("tokens",),
        check: Literal["headers", "blocks"] = "headers",
    ) -> Sampler[Any]:
        """Return the sampler of a new run, or of the run that wrote `state`.

        To inspect the batches of a run that has begun, pass the state of the run. A
        sampler without the state has the same batches only if the schedule was never
        edited. `roxxel_train.data_state("run")` reads the state from the run's folder.
        `Trainer.sampler` already uses the state.

        Args:
            seed: Any integer; determines the order. None for the seed in the state.
            state: What `Sampler.state` returned for the run; None for a new run. The
                state records `longest`, the past phases, and the version of each
                source. If a corpus has grown since, the sampler reads the recorded
                version. You may edit the phase that contains the step of the state: new
                `weights` apply from that step on, and `steps` counts from the start of
                the phase.
            fields: Names of the fields of a batch, each of shape `(B, T)`. If
                `"tokens"` is the only field, a batch is an array, otherwise a dict of
                arrays; a type checker knows which if you give a tuple. All fields but
                the tokens are int32: `"segment_ids"` counts the documents of a row from
                1 and is 0 on padding, `"positions"` counts
                tokens from the start of their document in the row, and `"source"` is an
                index into `source_names`. `"loss_mask"` is 1 on tokens to learn. It is
                0 on withdrawn tokens, on padding of a packed corpus, and where a column
                `loss_mask` of a corpus is 0.
                The state of the run has the digest of such a column. A run that has
                read from a corpus without the column goes on without it. The loss of
                predicting token j of a row counts `loss_mask[:, j]` times, so a loss
                over `tokens[:, 1:]` uses `loss_mask[:, 1:]`.
            check: `"blocks"` verifies the checksum of every block of tokens that the
                sampler reads, as `Roxxel(check="blocks")` does. `"headers"` uses the
                readers as they are.

        Raises:
            StateMismatch: The state and this curriculum differ in data, seed or past
                phases.
            CurriculumError: The sources cannot meet the schedule, `check` is `"blocks"`
                and a source has no checksums, or something is withdrawn or padding
                and `fields` lacks `"loss_mask"`.
            TypeError: Both `seed` and `state` are None.
            ValueError: A field or `check` is unknown.
        """
        seed, solution = self._bound(seed, state)
        sampler = Sampler(solution, seed, fields, check)
        if "loss_mask" not in sampler.fields:
            for what in _left_out(self._declaration, solution):
                # A list of texts is spelled alike in Python and in TOML.
                raise CurriculumError(
                    f"{what}, but a batch of the fields "
                    f"{', '.join(map(repr, sampler.fields))} does not say which tokens "
                    f"to leave out; give fields = {[*sampler.fields, 'loss_mask']}"
                )
        return sampler

    def proxy(
        self,
        *,
        scale: float | None = None,
        tokens: int | None = None,
        seed: int = 0,
    ) -> Proxy[Curriculum]:
        """Return a small curriculum that repeats its data as often as this one.

        Use it to choose a blend by small runs. The proxy has the same phases, weights,
        batches and lengths, at a share of the steps, over the same share of every
        source, so each source is read for as many epochs at the end of each phase. The
        proxy is a pure function of this curriculum, the seed and the scale.

        Args:
            scale: Share of the tokens, such as 1/16.
            tokens: Alternative to `scale`: the tokens of the small run.
            seed: Chooses the spans of each source that the proxy reads.

        Returns:
            The small curriculum, both plans, and what cannot match.

        Raises:
            CurriculumError: The scale is out of range, or a source is too small.
        """
        whole, plan = self._bound(seed, None)[1], self.plan(seed)
        share = checked_scale(scale, tokens, plan.total_tokens)
        declaration = replace(
            self._declaration,
            longest=whole.longest,
            sources=tuple(
                replace(each, part=chosen_part(whole.spans[each.name], share, seed))
                for each in self._declaration.sources
            ),
            skips=(),
        )
        phases = tuple(proxy_phases(declaration, whole, share))
        small: Curriculum = self._over(replace(declaration, phases=phases))
        small._proxy_of = self, {"scale": scale, "tokens": tokens, "seed": seed}
        pairs = (
            epochs_at_ends(each.phases, self.source_names)
            for each in (whole, small._solution)
        )
        return Proxy(
            curriculum=small,
            scale=share,
            plan=small.plan(seed),
            whole=plan,
            epochs=[
                {name: (big[name], one[name]) for name in self.source_names}
                for big, one in zip(*pairs, strict=False)
            ],
            notes=notes_on_proxy(whole, small._solution, share),
        )

    def as_read(self, state: Mapping[str, Any]) -> Curriculum:
        """Return this curriculum over the data that the run of a state reads.

        Use it to train the run again from its beginning. A new run of the result reads
        the recorded version of each source, cut by the recorded `longest`, and no
        column `loss_mask` that the run does not read, such as one written since. A
        source without the recorded version is read as it is now.

        Args:
            state: What `Sampler.state` returned for the run; may be read from JSON.

        Raises:
            StateMismatch: The state was modified.
            CurriculumError: The sources cannot meet the schedule.

        Example:
            >>> from roxxel_curriculum.testing import PositionReader
            >>> phases = [Phase(9, 4, 129), Phase(1, 4, 257)]
            >>> begun = Curriculum(PositionReader(10_000), phases[:1])
            >>> longer = Curriculum(PositionReader(10_000), phases)
            >>> longer.longest, longer.as_read(begun.sampler(seed=0).state(9)).longest
            (257, 129)
        """
        state = checked_state(state)
        return self._over(as_read(self._declared(state), state))

    def _declared(self, state: Mapping[str, Any]) -> Declaration:
        """Return the declaration for the run of a checked state.

        A proxy is a function of its whole sources. So after one has grown, it is made
        again from the versions of which it was made for this run.
        """
        if self._proxy_of is None:
            return self._declaration
        whole: Curriculum = self._proxy_of[0]
        then = whole._over(as_made(whole._declaration, state))
        made: Curriculum = then.proxy(**self._proxy_of[1]).curriculum
        return made._declaration

    def _over(self, declaration: Declaration) -> Curriculum:
        """Return this curriculum with a declaration that reads other data."""
        found = copy(self)
        vars(found).update(
            _declaration=declaration,
            _solution=_solved(declaration),
            _streamers={source.name: source.reader for source in declaration.sources},
        )
        return found

    def compare_held_out(self, held_out: Curriculum, name: str = "") -> tuple[str, ...]:
        """Compare held-out data with the data of this curriculum; reads no tokens.

        Args:
            held_out: Curriculum of a held-out set.
            name: Name of the set, for messages.

        Returns:
            A sentence for each doubt: a held-out corpus is a training corpus or shares
            shards with one, an evaluation reads its tokens more than once, or it
            records no tokenizer.

        Raises:
            CurriculumError: The ids of the held-out set certainly mean other text.
        """
        label = f"held-out set {name!r}, source" if name else "held-out source"
        sources = self._declaration.sources
        theirs = held_out._declaration.sources
        doubts = compare_ids(("source", sources), (label, theirs))
        return (
            *(doubt for doubt in doubts if doubt not in self._declaration.notes),
            *notes_on_held_out(sources, theirs, label),
            *(
                f"{label} {row.name!r} has {row.num_tokens:,} tokens, and each "
                f"evaluation reads them {row.epochs:.2f} times; evaluate on fewer "
                "steps or smaller batches, or hold out more documents"
                for row in held_out.plan().sources
                if row.epochs > 1
            ),
        )

    def _bound(
        self, seed: int | None, state: Mapping[str, Any] | None
    ) -> tuple[int, Solution]:
        """Return the seed and the solution of a new run, or of the run of `state`."""
        if state is not None:
            state = checked_state(state)
            given = as_integer("seed", state["seed"] if seed is None else seed)
            return given, resume(self._declared(state), given, state)
        if seed is None:
            raise TypeError(
                "a sampler needs a seed or the state of a run, got neither; give "
                "seed=0 for a new run, or the state of a run that has begun"
            )
        return as_integer("seed", seed), self._solution


@dataclass(frozen=True)
class Schedule(Arguments):
    """The arguments of a `Curriculum` without its corpora.

    Use it to keep a schedule apart from the data. In the package `roxxel`,
    `load_schedule` reads a schedule from a TOML file.

    Attributes:
        phases: Phases in training order.
        longest: See `Curriculum`.
        policies: See `Curriculum`.
        max_epochs: See `Curriculum`.
        overlap: See `Curriculum`.
        skips: Pairs `(at, count)`; see `Curriculum`.
        without: Documents and tokens to withdraw by source; see `Curriculum`.
        primary: Name of the primary source; see `Curriculum`.
        tokenizers: Tokenizers by source; see `Curriculum`.

    Raises:
        CurriculumError: A value is out of range.
        TypeError: A value has the wrong type.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> schedule = Schedule((Phase(9, 4, 129),), overlap=1)
        >>> schedule.curriculum(PositionReader(10_000)).total_steps
        9
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Each curriculum reads them again, and an iterator gives them only once.
        without = {
            name: tuple(cast("Iterator[Any]", each))
            if hasattr(each, "__next__")
            else each
            for name, each in self.without.items()
        }
        object.__setattr__(self, "without", without)
        for name, documents in without.items():
            check_documents(documents, name)

    def curriculum(
        self,
        primary_streamer: TokenReader,
        mix_streamers: Mapping[str, TokenReader] | None = None,
    ) -> Curriculum:
        """Return a curriculum with this schedule and some corpora.

        Args:
            primary_streamer: The primary source.
            mix_streamers: Further sources by name.

        Raises:
            CurriculumError: The corpora cannot meet the schedule.
        """
        names = [each.name for each in fields(self)]
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Curriculum(primary_streamer, mix_streamers=mix_streamers, **own)

    def relative_to(self, folder: Path) -> Schedule:
        """Return the schedule, with paths in `without` taken relative to a folder."""

        def moved(documents: Any) -> Any:
            if isinstance(documents, list | tuple):
                items = cast("Sequence[Any]", documents)
                return [folder / str(x) if is_listed_path(x) else x for x in items]
            return folder / str(documents) if is_path(documents) else documents

        without = {name: moved(each) for name, each in self.without.items()}
        return replace(self, without=without)

    @property
    def scans(self) -> dict[str, list[Scan]]:
        """The receipts of scans in `without`, by source.

        Raises:
            FileNotFoundError: A receipt does not exist.
            ShardError: A receipt is damaged.
        """
        found = {
            name: [Scan.read(x) for x in paths_in(each) if str(x).endswith(".json")]
            for name, each in self.without.items()
        }
        return {name: scans for name, scans in found.items() if scans}


def _merged(skips: Iterable[tuple[int, int]]) -> tuple[Skip, ...]:
    """Sort skips by step, and add up the counts of skips at the same step."""
    merged = Counter[int]()
    for at, count in skips:
        merged[at] += count
    return tuple(Skip(at, count) for at, count in sorted(merged.items()))


def _solved(declaration: Declaration) -> Solution:
    """Return the solution for a new run.

    Raises:
        CurriculumError: The sources cannot meet the schedule.
    """
    try:
        solution = solve(declaration)
    except CurriculumError as error:
        raise CurriculumError(f"{error}{_earlier_longest(declaration)}") from error
    names = solution.source_names
    check_all_named(declaration.phases, names)
    withdrawals = continued((), declaration.without, names, 0)
    return replace(solution, withdrawals=withdrawals)


def _earlier_longest(declaration: Declaration) -> str:
    """Return the remedy for a run that began without the longest phase, or ""."""
    longest = declaration.resolved_longest
    shorter = [x.seq_len for x in declaration.phases if x.seq_len < longest]
    if declaration.longest is not None or not shorter:
        return ""
    try:
        solve(replace(declaration, longest=max(shorter)))
    except CurriculumError:
        return ""
    return (
        f"; a run that began without the sequences of {longest} tokens can go on: "
        f"declare longest={max(shorter)}, with which it began"
    )


def _left_out(declaration: Declaration, solution: Solution) -> Iterator[str]:
    """Describe what the loss must leave out, which only `loss_mask` can tell it."""
    for name, withdrawn in sorted(declaration.without.items()):
        yield f"{withdrawn.amount} of source {name!r} must not be learned"
    for source in solution.declaration.sources:
        if source.num_padding:
            yield (
                f"{source.num_padding} tokens of source {source.name!r} are padding of "
                f"its bins of {source.unit}"
            )
