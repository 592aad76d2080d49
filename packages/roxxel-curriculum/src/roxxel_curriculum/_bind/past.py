"""Resume a run from its state: the order of its recorded steps, and what may follow."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import ShardError, TokenReader

from roxxel_curriculum._bind.sources import at_version, at_versions, opened
from roxxel_curriculum._errors import CurriculumError, StateMismatch
from roxxel_curriculum._plan.changes import changes
from roxxel_curriculum._plan.solution import (
    Declaration,
    Part,
    Skip,
    Solution,
    Solver,
    Source,
)
from roxxel_curriculum._plan.withdrawn import Withdrawal, continued
from roxxel_curriculum.phase import Phase
from roxxel_curriculum.policy import Policy
from roxxel_curriculum.state import (
    drawn_sources,
    recorded_masks,
    recorded_phases,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from roxxel_curriculum._plan.solution import ResolvedPhase


def recorded(
    state: Mapping[str, Any], readers: Mapping[str, TokenReader] | None = None
) -> Solution:
    """Return the order of the steps that a checked state records.

    A source can read tokens only if `readers` has it. One that `readers` lacks is left
    out if no recorded phase draws from it.

    Raises:
        StateMismatch: A reader holds other tokens than the recorded source.
        CurriculumError: `readers` lacks a source that the run has read.
    """
    entries = recorded_phases(state)
    declaration = Declaration(
        sources=tuple(map(_recorded_source, state["sources"])),
        phases=tuple(map(_declared, entries)),
        longest=state["longest"],
        overlap=state["overlap"],
        skips=tuple(Skip(at, count) for at, count in state["skips"]),
        max_epochs=None,
        masks=recorded_masks(state),
    )
    solver = Solver(declaration)
    index = -1
    for phase, entry in zip(declaration.phases, entries, strict=True):
        index += not entry.is_edited
        solver.add(phase, max(index, 0), is_edited=entry.is_edited)
    past = Solution(
        declaration,
        state["longest"],
        solver.spans,
        tuple(solver.phases),
        early_stop=None,
        withdrawals=tuple(map(Withdrawal.from_json, state.get("without", ()))),
    )
    return past if readers is None else _read_by(past, readers, state)


def resume(declaration: Declaration, seed: int, state: Mapping[str, Any]) -> Solution:
    """Solve a declaration for the run that wrote `state`.

    It takes `longest` and the versions of the sources from the state. If the phase that
    contains the state's step has new weights, `resume` splits the phase at this step.
    If the state records that a phase was split, `resume` splits it again. `state` is
    the result of `checked_state`.
    """
    past = recorded(state)
    masks = {**declaration.masks, **past.declaration.masks}
    declaration = replace(as_made(declaration, state), masks=masks)
    solution = _solved(declaration, past)
    solution = replace(
        solution,
        withdrawals=continued(
            past.withdrawals,
            declaration.without,
            solution.source_names,
            state["step"],
        ),
    )
    _check_kept(past, solution, (state["seed"], seed))
    return solution


def as_read(declaration: Declaration, state: Mapping[str, Any]) -> Declaration:
    """Return a declaration of the data that the run of a checked state reads."""
    drawn = drawn_sources(state)
    unread = {
        source["name"]: None
        for source in state["sources"]
        if source["name"] in drawn and source.get("loss_mask") is None
    }
    masks = {**declaration.masks, **unread}
    return replace(as_made(declaration, state), masks=masks)


def as_made(declaration: Declaration, state: Mapping[str, Any]) -> Declaration:
    """Return a declaration with the versions and the `longest` of a checked state."""
    return replace(
        declaration,
        sources=at_versions(declaration.sources, recorded_versions(state)),
        longest=declaration.longest or state["longest"],
    )


def recorded_versions(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of each source of a state, by name."""
    return {source["name"]: source["fingerprint"] for source in state["sources"]}


def check_past(solution: Solution, seed: int, state: Mapping[str, Any]) -> None:
    """Raise `StateMismatch` if the solution differs from the steps in a state.

    `state` is the result of `checked_state`.
    """
    _check_kept(recorded(state), solution, (state["seed"], seed))


def _check_kept(past: Solution, present: Solution, seeds: tuple[int, int]) -> None:
    """Raise `StateMismatch` if the declaration changes what a run must keep."""
    step = past.total_steps
    found = [
        each.text
        for each in changes(past, present, seeds)
        if each.since is not None and each.since < step
    ]
    if found:
        raise StateMismatch(found, step)


class _Unread(TokenReader):
    """A source of which only a state is left; reading its tokens is an error."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry

    @property
    def num_tokens(self) -> int:
        return self._entry["tokens"]

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        raise self._error()

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        del starts, length, dtype, out
        raise self._error()

    def _error(self) -> ShardError:
        return ShardError(
            f"source {self._entry['name']!r} has no reader here, which its tokens and "
            "documents need; give `sources` to `recorded_sampler`"
        )


def _recorded_source(entry: Mapping[str, Any]) -> Source:
    part = entry.get("part")
    return Source(
        entry["name"],
        _Unread(entry),
        Policy(**entry["policy"]),
        entry.get("order_name", entry["name"]),
        num_tokens=entry["tokens"],
        dtype=np.dtype(entry["dtype"]),
        fingerprint=entry["fingerprint"],
        tokenizer=entry["tokenizer"],
        unit=entry.get("unit", 1),
        part=None if part is None else Part(**part),
    )


def _read_by(
    past: Solution, readers: Mapping[str, TokenReader], state: Mapping[str, Any]
) -> Solution:
    drawn = drawn_sources(state)
    missing = sorted(drawn - readers.keys())
    if missing:
        raise CurriculumError(
            f"the run read from source {missing[0]!r}, which has no reader; "
            f"give a reader for each of {', '.join(map(repr, sorted(drawn)))}"
        )
    sources = past.declaration.sources
    found: list[Source] = []
    for each in sources:
        if each.name in readers:
            reader = readers[each.name]
            with suppress(ShardError):  # Other data, as the comparison then says.
                reader = at_version(reader, each.fingerprint)
            source = opened(each.name, reader, each.policy, each.order_name)
            found.append(replace(source, part=each.part))
    there = tuple(found)
    present = replace(past, declaration=replace(past.declaration, sources=there))
    _check_kept(past, present, (state["seed"], state["seed"]))
    return present


def _declared(entry: ResolvedPhase) -> Phase:
    return Phase(entry.steps, entry.batch_size, entry.seq_len, entry.weights)


def _solved(declaration: Declaration, past: Solution) -> Solution:
    """Solve a declaration, and split its phases where a run has split them."""
    solver = Solver(declaration)
    for index, phase in enumerate(declaration.phases):
        rest, is_edited = phase, False
        while left := _add_trained(
            solver, past.phases, rest, index, is_edited=is_edited
        ):
            rest, is_edited = left, True
        solver.add(rest, index, is_edited=is_edited)
    return solver.solution()


def _add_trained(
    solver: Solver,
    entries: Sequence[ResolvedPhase],
    rest: Phase,
    index: int,
    *,
    is_edited: bool,
) -> Phase | None:
    """Add the first steps of `rest` as the run has trained them; return the others.

    Returns None, and adds nothing, if the run did not split the phase here, or cannot
    have split this phase.
    """
    at = next((i for i, x in enumerate(entries) if x.start == solver.step), None)
    if at is None or solver.early_stop is not None:
        return None
    entry, later = entries[at], entries[at + 1 : at + 2]
    if (
        (later and not later[0].is_edited)
        or (entry.batch_size, entry.seq_len) != (rest.batch_size, rest.seq_len)
        or not entry.weights.keys() <= solver.spans.keys()
    ):
        return None
    is_same = entry.weights == rest.integer_weights
    if is_same and (not later or solver.solve(rest, index).stop <= entry.stop):
        return None
    solved = solver.solve(_declared(entry), index, is_edited=is_edited)
    # With other data, the sources may not last for the recorded steps.
    is_whole = solved.steps == entry.steps
    left = _without(solved, rest, solver) if is_whole else None
    if left is not None:
        solver.append(solved)
    return left


def _without(solved: ResolvedPhase, rest: Phase, solver: Solver) -> Phase | None:
    """Return a phase without its solved first steps; None if none is left."""
    if rest.declared_steps is not None:
        steps = rest.declared_steps - solved.steps
        return replace(rest, steps=steps, tokens=None) if steps > 0 else None
    primary = solver.primary
    per_epoch = solver.spans[primary].windows_per_epoch(rest.seq_len)
    given = solved.delivered(solved.steps).get(primary, 0)
    if int(rest.exact_epochs * per_epoch) <= given:
        return None
    return replace(rest, epochs=rest.exact_epochs - Fraction(given, per_epoch))
