"""Resuming a run: its past as it was trained, its future as declared now."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from roxxel_curriculum._differences import (
    policy_differences,
    recorded_phase,
    run_differences,
)
from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._plan.solver import Solver
from roxxel_curriculum._sources import at_versions
from roxxel_curriculum.phase import PRIMARY
from roxxel_curriculum.state import check_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum._plan.declaration import Declaration, Solution
    from roxxel_curriculum.phase import Phase


def resume(declaration: Declaration, seed: int, state: Mapping[str, Any]) -> Solution:
    """Solve a declaration for a run that is at the step of `state`.

    The state gives `longest` and the version of each source. A phase that contains the
    step and has other weights than before is split there. Where the state records such
    a split, the declared phase continues across it.

    Raises:
        StateMismatch: The declaration has another past.
        CurriculumError: The rest of the schedule cannot be met.
    """
    check_form(state)
    fingerprints = {
        source["name"]: source["fingerprint"] for source in state["sources"]
    }
    longest = declaration.longest or state["longest"]
    declaration = replace(
        declaration,
        sources=at_versions(declaration.sources, fingerprints),
        longest=longest,
    )
    found = run_differences(declaration, longest, seed, state)
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
    found = found or policy_differences(declaration, state)
    if found:
        raise StateMismatch(found)
    return solver.solution()


class _Past:
    """Adds declared phases to a solver, matched with the recorded phases of a state.

    Attributes:
        found: One sentence for each difference between the two.
    """

    def __init__(self, solver: Solver, state: Mapping[str, Any]) -> None:
        self.found: list[str] = []
        self._solver = solver
        self._entries = state["phases"]
        self._step = state["step"]
        self._next = 0

    def add(self, phase: Phase, index: int) -> None:
        """Add a declared phase to the solver, split as it was trained."""
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
        """Note the differences of a phase that follows one that does not match."""
        while self._next < len(self._entries) and self._entries[self._next]["edited"]:
            self._next += 1
        if self._next == len(self._entries):
            return
        entry = self._entries[self._next]
        self._next += 1
        self._compare_shape(phase, index, entry)
        continues = (
            self._next == len(self._entries) or self._entries[self._next]["edited"]
        )
        if entry["weights"] != phase.integer_weights and not continues:
            stop = self._entries[self._next]["start"]
            self._note_weights(phase, index, entry, stop)

    def _compare_shape(
        self, phase: Phase, index: int, entry: Mapping[str, Any]
    ) -> None:
        self.found.extend(
            f"phase {index} began at step {entry['start']} with {what}={entry[what]} "
            f"and now has {getattr(phase, what)}"
            for what in ("batch_size", "seq_len")
            if entry[what] != getattr(phase, what)
        )

    def _note_weights(
        self, phase: Phase, index: int, entry: Mapping[str, Any], stop: int
    ) -> None:
        self.found.append(
            f"the weights of phase {index} were {entry['weights']} until step {stop} "
            f"and are now {phase.integer_weights}"
        )

    def _add_recorded(self, phase: Phase, index: int, rest: Phase) -> Phase | None:
        """Add the part of a phase that the next recorded entry covers.

        Args:
            phase: The declared phase.
            index: Its index.
            rest: The part of it that is not added yet.

        Returns:
            The part that is left; None if nothing is, or if the two do not match.
        """
        entry = self._entries[self._next]
        is_last = self._next + 1 == len(self._entries)
        stop = self._step if is_last else self._entries[self._next + 1]["start"]
        continues = is_last or self._entries[self._next + 1]["edited"]
        self._next += 1
        self._compare_shape(phase, index, entry)
        if self.found:
            return None
        is_same = entry["weights"] == phase.integer_weights
        if is_same:
            solved = self._solver.solve(rest, index)
            if solved.stop == stop or (is_last and solved.stop > stop):
                self._solver.add(rest, index, is_edited=rest is not phase)
                return None
            if solved.stop < stop:
                self.found.append(
                    f"phase {index} ends at step {solved.stop}, but the run trained it "
                    f"until {'at least ' if is_last else ''}step {stop}"
                )
                return None
        if not continues:
            if is_same:
                self.found.append(
                    f"phase {index} goes on past step {stop}, where the run began "
                    "another"
                )
            else:
                self._note_weights(phase, index, entry, stop)
            return None
        left = self._split(phase, index, rest, entry, stop)
        if left is None:
            self._note_weights(phase, index, entry, stop)
        return left

    def _split(
        self, phase: Phase, index: int, rest: Phase, entry: Mapping[str, Any], stop: int
    ) -> Phase | None:
        """Add the recorded part of `rest`; return what is left, None if nothing is."""
        steps = stop - self._solver.step
        recorded = recorded_phase(entry, stop - entry["start"])
        solved = self._solver.add(recorded, index, is_edited=rest is not phase)
        if solved is None or solved.steps != steps:
            return None
        if rest.declared_steps is not None:
            if rest.declared_steps <= steps:
                return None
            return replace(rest, steps=rest.declared_steps - steps, tokens=None)
        per_epoch = self._solver.spans[PRIMARY].windows_per_epoch(rest.seq_len)
        given = solved.delivered(steps).get(PRIMARY, 0)
        epochs = rest.exact_epochs - Fraction(given, per_epoch)
        if int(rest.exact_epochs * per_epoch) <= given:
            return None
        return replace(rest, epochs=epochs)
