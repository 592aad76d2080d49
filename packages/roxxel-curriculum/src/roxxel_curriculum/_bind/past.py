"""Resumes a run from its state, and compares a curriculum with the recorded steps."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._bind.sources import at_versions
from roxxel_curriculum._errors import CurriculumError, StateMismatch
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum._plan.solution import Declaration, Skip
from roxxel_curriculum._plan.solver import Solver
from roxxel_curriculum._plan.withdrawn import continued, recorded_withdrawals
from roxxel_curriculum.phase import Phase
from roxxel_curriculum.policy import Policy
from roxxel_curriculum.state import drawn_sources, order_name, recorded_phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum._plan.solution import ResolvedPhase, Solution, Source

_LONGEST_REMEDY = (
    ", the length of the longest phase, so every batch differs; pass the state to "
    "Curriculum.sampler, which then uses the recorded longest"
)


def resume(declaration: Declaration, seed: int, state: Mapping[str, Any]) -> Solution:
    """Solve a declaration for the run that wrote `state`.

    `longest` and the versions of the sources are those in the state. If the phase that
    contains the state's step has new weights, `resume` splits the phase at this step.
    If the state records that a phase was split, `resume` compares the one declared
    phase with all its recorded parts. `state` is the result of `checked_state`.
    """
    fingerprints = {
        source["name"]: source["fingerprint"] for source in state["sources"]
    }
    longest = declaration.longest or state["longest"]
    declaration = replace(
        declaration,
        sources=at_versions(declaration.sources, fingerprints),
        longest=longest,
    )
    found = _run_differences(declaration, seed, state)
    names = {source.name for source in declaration.sources}
    known = all(phase["weights"].keys() <= names for phase in state["phases"])
    if longest != state["longest"] or not known:
        raise StateMismatch(found)
    solver = Solver(declaration)
    past = _Past(solver, state)
    for index, phase in enumerate(declaration.phases):
        past.add(phase, index)
    found += past.found
    if solver.step < state["step"] and not past.found:
        found.append(
            f"the run has done {state['step']} steps, the curriculum has {solver.step}"
        )
    found = found or _policy_differences(declaration, state)
    if found:
        raise StateMismatch(found)
    solution = solver.solution()
    past = recorded_withdrawals(state)
    return replace(
        solution,
        withdrawals=continued(
            past, declaration.without, solution.source_names, state["step"]
        ),
    )


def recorded_solution(
    sources: tuple[Source, ...], state: Mapping[str, Any]
) -> Solution:
    """Solve the phases that a state records; raise if the sources are not the same.

    `state` is the result of `checked_state`.
    """
    declaration = _recorded_declaration(sources, state)
    found = _run_differences(declaration, state["seed"], state)
    if found:
        raise StateMismatch(found)
    return replace(
        _solved_past(declaration, state).solution(),
        withdrawals=recorded_withdrawals(state),
    )


def check_past(solution: Solution, seed: int, state: Mapping[str, Any]) -> None:
    """Raise `StateMismatch` if the solution differs from the steps in a state.

    `state` is the result of `checked_state`.
    """
    step = state["step"]
    found = _run_differences(solution.declaration, seed, state)
    if step > solution.total_steps:
        found.append(
            f"the state is at step {step}, the curriculum has {solution.total_steps}"
        )
    else:
        found += _phase_differences(solution, state)
        found += _withdrawn_differences(solution, state)
        found = found or _policy_differences(solution.declaration, state)
    if found:
        raise StateMismatch(found)


def _run_differences(
    declaration: Declaration, seed: int, state: Mapping[str, Any]
) -> list[str]:
    """Return a sentence for each difference in seed, sizes, sources and skips."""
    live = {
        "seed": seed,
        "longest": declaration.resolved_longest,
        "overlap": declaration.overlap,
    }
    found = [
        f"{name} was {state[name]} and is now {value}"
        + (_LONGEST_REMEDY if name == "longest" and not declaration.longest else "")
        for name, value in live.items()
        if state[name] != value
    ]
    sources = {source.name: source for source in declaration.sources}
    drawn = drawn_sources(state)
    for source in state["sources"]:
        name = source["name"]
        if name not in drawn:
            continue
        if name not in sources:
            found.append(
                f"source {name!r} gave samples before step {state['step']} and is gone "
                "or renamed (keep it, with the weight 0 from that step on)"
            )
            continue
        order_names = order_name(source), sources[name].order_name
        if order_names[0] != order_names[1]:
            was, now = ("" if each == PRIMARY else "not " for each in order_names)
            found.append(
                f"source {name!r} was {was}the primary and is now {now}the primary, "
                "which changes the order of its windows"
            )
        reader, unit = sources[name].reader, sources[name].unit
        now = {
            "fingerprint": ("fingerprint", reader.fingerprint),
            "tokens": ("number of tokens", int(reader.num_tokens)),
            "dtype": ("dtype", np.dtype(reader.dtype).name),
            "tokenizer": ("tokenizer", reader.tokenizer),
        }
        found.extend(
            f"the {what} of source {name!r} was {source[key]} and is now {value}"
            for key, (what, value) in now.items()
            if source[key] != value
        )
        if source.get("unit", 1) != unit:
            found.append(
                f"source {name!r} was {_packed(source.get('unit', 1))} and is now "
                f"{_packed(unit)}"
            )
    past: dict[int, int] = dict(state["skips"])
    here = {skip.at: skip.steps for skip in declaration.skips}
    found.extend(
        f"at step {at} the run skipped the data of {past.get(at, 0)} steps, "
        f"the curriculum skips the data of {here.get(at, 0)}"
        for at in sorted(past.keys() | {at for at in here if at < state["step"]})
        if past.get(at, 0) != here.get(at, 0)
    )
    return found


def _packed(unit: int) -> str:
    return f"packed in bins of {unit} tokens" if unit > 1 else "not packed"


def _phase_differences(solution: Solution, state: Mapping[str, Any]) -> list[str]:
    live = [phase for phase in solution.phases if phase.start < state["step"]]
    past = recorded_phases(state)
    found = [
        f"{what} of phase {index} was {getattr(old, what)} and is now "
        f"{getattr(new, what)}"
        for index, (old, new) in enumerate(zip(past, live, strict=False))
        for what in ("start", "batch_size", "seq_len")
        if getattr(old, what) != getattr(new, what)
    ]
    found.extend(
        f"phase {index} has other weights: {_changed_weights(old.weights, new.weights)}"
        for index, (old, new) in enumerate(zip(past, live, strict=False))
        if old.weights != new.weights
    )
    found.extend(
        f"the run began a phase at step {phase.start}, but the curriculum has fewer "
        f"phases before step {state['step']}"
        for phase in past[len(live) :]
    )
    found.extend(
        f"the curriculum begins a phase at step {phase.start}, but the run had fewer "
        f"phases before step {state['step']}"
        for phase in live[len(past) :]
    )
    return found


def _changed_weights(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    """Name the source whose share changed most, and count the others that changed."""
    old_sum, new_sum = sum(old.values()), sum(new.values())
    changes = {
        name: abs(
            Fraction(old.get(name, 0), old_sum) - Fraction(new.get(name, 0), new_sum)
        )
        for name in sorted({*old, *new})
    }
    most = max(changes, key=changes.__getitem__)
    others = sum(change > 0 for change in changes.values()) - 1
    noun = "source differs" if others == 1 else "sources differ"
    return (
        f"{most!r} had {old.get(most, 0)} of {old_sum} and now has "
        f"{new.get(most, 0)} of {new_sum}, and {others} more {noun}"
    )


def _withdrawn_differences(solution: Solution, state: Mapping[str, Any]) -> list[str]:
    """Compare the withdrawals before the step of the state.

    Returns a sentence for each withdrawal that only the state or only the solution has.
    """
    past = recorded_withdrawals(state)
    live = [each for each in solution.withdrawals if each.step < state["step"]]
    different = {*past} ^ {*live}
    return [
        f"from step {each.step} on, the run withdrew {each.amount} of source "
        f"{each.source!r}"
        + (", the curriculum did not" if each in past else " only in the curriculum")
        for each in sorted(different, key=lambda each: (each.step, each.source))
    ]


def _policy_differences(
    declaration: Declaration, state: Mapping[str, Any]
) -> list[str]:
    """Return a sentence for each changed policy that changes the past.

    The past is solved with the policies in the state, and again with each changed
    policy. A policy may change if every source still runs out at the same sample.
    """
    recorded = {
        source["name"]: Policy(source["policy"]["epochs"], source["policy"]["then"])
        for source in state["sources"]
    }
    changed = [
        source
        for source in declaration.sources
        if recorded.get(source.name, source.policy) != source.policy
    ]
    if not changed or not state["step"]:
        return []
    before = _past_legs(declaration, recorded, state)
    found: list[str] = []
    for source in changed:
        policies = recorded | {source.name: source.policy}
        if before is None or before != _past_legs(declaration, policies, state):
            found.append(
                f"the policy of source {source.name!r} was "
                f"{str(recorded[source.name])!r} and is now {str(source.policy)!r}, "
                f"which changes the batches before step {state['step']}"
            )
    return found


def _past_legs(
    declaration: Declaration, policies: Mapping[str, Policy], state: Mapping[str, Any]
) -> list[list[tuple[int, tuple[str, ...]]]] | None:
    """Solve the recorded phases with `policies`.

    Returns start and sources of each `Leg`, in one list per phase; None if the sources
    run out too early under these policies.
    """
    sources = tuple(
        replace(source, policy=policies.get(source.name, source.policy))
        for source in declaration.sources
    )
    try:
        solver = _solved_past(_recorded_declaration(sources, state), state)
    except CurriculumError:
        return None
    if solver.early_stop:
        return None
    return [
        [(leg.start, leg.blend.sources) for leg in phase.legs]
        for phase in solver.phases
    ]


def _recorded_declaration(
    sources: tuple[Source, ...], state: Mapping[str, Any]
) -> Declaration:
    """Return the declaration of the steps that a state records."""
    phases = tuple(map(_declared, recorded_phases(state)))
    skips = tuple(Skip(at, count) for at, count in state["skips"])
    return Declaration(
        sources, phases, state["longest"], state["overlap"], skips, max_epochs=None
    )


def _solved_past(declaration: Declaration, state: Mapping[str, Any]) -> Solver:
    """Return a solver that has added the phases of `_recorded_declaration`.

    Raises:
        CurriculumError: The sources run out before the state's step.
    """
    solver = Solver(declaration)
    index = -1
    for phase, entry in zip(declaration.phases, recorded_phases(state), strict=True):
        index += not entry.is_edited
        solver.add(phase, max(index, 0), is_edited=entry.is_edited)
    return solver


def _declared(entry: ResolvedPhase) -> Phase:
    """Return a `Phase` that declares this recorded phase."""
    return Phase(entry.steps, entry.batch_size, entry.seq_len, entry.weights)


class _Past:
    """Adds phases to a solver, and compares each phase with those of a state."""

    def __init__(self, solver: Solver, state: Mapping[str, Any]) -> None:
        self.found: list[str] = []  # one sentence for each difference
        self._solver = solver
        self._entries = recorded_phases(state)
        self._step = state["step"]
        self._next = 0

    def add(self, phase: Phase, index: int) -> None:
        """Add a declared phase to the solver, with the splits in the state."""
        solver = self._solver
        if self.found:
            self._compare(phase, index)
            return
        rest: Phase | None = phase
        while rest is not None and not self.found:
            if solver.early_stop is not None or solver.step >= self._step:
                break
            rest = self._add_recorded(phase, index, rest)
        if rest is not None and not self.found:
            solver.add(rest, index, is_edited=rest is not phase)

    def _compare(self, phase: Phase, index: int) -> None:
        """Compare sizes and weights of a phase with the next recorded phase.

        Runs after a difference was found. The phase can then not be solved, so its
        number of steps is not compared.
        """
        while self._next < len(self._entries) and self._entries[self._next].is_edited:
            self._next += 1
        if self._next == len(self._entries):
            return
        entry = self._next_entry()
        self._compare_shape(phase, index, entry)
        if entry.weights != phase.integer_weights and not self._continues():
            self._note_weights(phase, index, entry)

    def _next_entry(self) -> ResolvedPhase:
        self._next += 1
        return self._entries[self._next - 1]

    def _continues(self) -> bool:
        """Return whether the phase may continue after the entry that was read last."""
        return self._next == len(self._entries) or self._entries[self._next].is_edited

    def _compare_shape(self, phase: Phase, index: int, entry: ResolvedPhase) -> None:
        self.found.extend(
            f"phase {index} began at step {entry.start} with "
            f"{what}={getattr(entry, what)} and now has {getattr(phase, what)}"
            for what in ("batch_size", "seq_len")
            if getattr(entry, what) != getattr(phase, what)
        )

    def _note_weights(self, phase: Phase, index: int, entry: ResolvedPhase) -> None:
        self.found.append(
            f"phase {index} ran until step {entry.stop} with other weights: "
            f"{_changed_weights(entry.weights, phase.integer_weights)}"
        )

    def _add_recorded(self, phase: Phase, index: int, rest: Phase) -> Phase | None:
        """Add the part of `phase` that the next recorded entry describes.

        `rest` is the part of `phase` that is not added yet. Returns what remains of
        `rest`; None if no steps remain, or if `phase` differs from the entry.
        """
        entry = self._next_entry()
        self._compare_shape(phase, index, entry)
        if self.found:
            return None
        if entry.weights == phase.integer_weights:
            is_last = self._next == len(self._entries)
            solved = self._solver.solve(rest, index)
            if solved.stop == entry.stop or (is_last and solved.stop > entry.stop):
                self._solver.add(rest, index, is_edited=rest is not phase)
                return None
            if solved.stop < entry.stop:
                self.found.append(
                    f"phase {index} ends at step {solved.stop}, but the run trained it "
                    f"until {'at least ' if is_last else ''}step {entry.stop}"
                )
                return None
            if not self._continues():
                self.found.append(
                    f"phase {index} continues past step {entry.stop}, where the run "
                    "began another phase"
                )
                return None
        left = None
        if self._continues():
            left = self._split(entry, index, rest, is_edited=rest is not phase)
        if left is None:
            self._note_weights(phase, index, entry)
        return left

    def _split(
        self, entry: ResolvedPhase, index: int, rest: Phase, *, is_edited: bool
    ) -> Phase | None:
        """Add the first steps of `rest`, which `entry` records; return the other steps.

        Returns None if no steps remain, or if the sources do not last for the steps of
        `entry`.
        """
        solved = self._solver.add(_declared(entry), index, is_edited=is_edited)
        if solved is None or solved.steps != entry.steps:
            return None
        if rest.declared_steps is not None:
            steps = rest.declared_steps - entry.steps
            return replace(rest, steps=steps, tokens=None) if steps > 0 else None
        primary = self._solver.primary
        per_epoch = self._solver.spans[primary].windows_per_epoch(rest.seq_len)
        given = solved.delivered(solved.steps).get(primary, 0)
        if int(rest.exact_epochs * per_epoch) <= given:
            return None
        return replace(rest, epochs=rest.exact_epochs - Fraction(given, per_epoch))
