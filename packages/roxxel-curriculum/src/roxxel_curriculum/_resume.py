"""Going on with a run: its past as it was, its future as now declared."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from roxxel_curriculum._declaration import finish, pieces, start_solver
from roxxel_curriculum._solved import PRIMARY, Piece
from roxxel_curriculum._state import recorded_piece, run_differences
from roxxel_curriculum._state_form import StateMismatch, check_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum._declaration import Declaration, SolvedRun
    from roxxel_curriculum._solver import Solver


def solve_from(
    declaration: Declaration, seed: int, state: Mapping[str, Any]
) -> SolvedRun:
    """Solve a declaration for a run that is at the step of `state`.

    The sizes fixed at the start come from the state. A phase that the step lies in and
    whose weights differ is split there; where the state records such a split, the
    declared phase goes on across it.

    Raises:
        StateMismatch: The declaration has another past.
        CurriculumError: The rest of the schedule cannot be met.
    """
    check_form(state)
    longest = declaration.longest or state["longest"]
    found = run_differences(declaration, longest, seed, state)
    names = {source.name for source in declaration.sources}
    known = all(phase["weights"].keys() <= names for phase in state["phases"])
    if longest != state["longest"] or not known:
        raise StateMismatch(found)
    solver = start_solver(declaration, longest)
    past = _Past(solver, state)
    for piece in pieces(declaration):
        past.take(piece)
    found += past.found
    if solver.step < state["step"] and not past.found:
        found.append(
            f"the run has done {state['step']} steps, the curriculum has {solver.step}"
        )
    if found:
        raise StateMismatch(found)
    return finish(declaration, longest, solver)


class _Past:
    """Walks declared phases along the recorded ones, then past them."""

    def __init__(self, solver: Solver, state: Mapping[str, Any]) -> None:
        self.found: list[str] = []
        self._solver = solver
        self._entries = state["phases"]
        self._step = state["step"]
        self._next = 0

    def take(self, piece: Piece) -> None:
        """Add a declared phase to the solver, in the pieces that it was trained in."""
        solver = self._solver
        if self.found:
            self._compare(piece)
            return
        rest: Piece | None = piece
        while rest is not None and not self.found:
            if solver.ended is not None or solver.step >= self._step:
                break
            rest = self._take_recorded(piece, rest)
        if rest is not None and not self.found:
            solver.add(rest)

    def _compare(self, piece: Piece) -> None:
        """Name what differs in a phase behind one that cannot be joined."""
        while self._next < len(self._entries) and self._entries[self._next]["edited"]:
            self._next += 1
        if self._next == len(self._entries):
            return
        entry = self._entries[self._next]
        self._next += 1
        self._compare_shape(piece, entry)
        goes_on = (
            self._next == len(self._entries) or self._entries[self._next]["edited"]
        )
        if entry["weights"] != dict(piece.weights) and not goes_on:
            self._note_weights(piece, entry, self._entries[self._next]["start"])

    def _compare_shape(self, piece: Piece, entry: Mapping[str, Any]) -> None:
        self.found.extend(
            f"{piece.label} began at step {entry['start']} with {what}={entry[what]} "
            f"and now has {getattr(piece, what)}"
            for what in ("batch_size", "seq_len")
            if entry[what] != getattr(piece, what)
        )

    def _note_weights(self, piece: Piece, entry: Mapping[str, Any], stop: int) -> None:
        self.found.append(
            f"the weights of {piece.label} were {entry['weights']} until step {stop} "
            f"and are now {dict(piece.weights)}"
        )

    def _take_recorded(self, piece: Piece, rest: Piece) -> Piece | None:
        """Add what the next recorded phase covers; return what is left of `rest`."""
        entry = self._entries[self._next]
        is_last = self._next + 1 == len(self._entries)
        stop = self._step if is_last else self._entries[self._next + 1]["start"]
        goes_on = not is_last and self._entries[self._next + 1]["edited"]
        index = self._next
        self._next += 1
        self._compare_shape(piece, entry)
        if self.found:
            return None
        is_same = entry["weights"] == dict(piece.weights)
        if is_same:
            solved = self._solver.solve(rest)
            if solved.stop == stop or (is_last and solved.stop > stop):
                self._solver.add(rest)
                return None
            if solved.stop < stop:
                self.found.append(
                    f"{piece.label} ends at step {solved.stop}, but the run trained it "
                    f"until {'at least ' if is_last else ''}step {stop}"
                )
                return None
        if not (is_last or goes_on):
            if is_same:
                self.found.append(
                    f"{piece.label} goes on past step {stop}, where the run began "
                    "another"
                )
            else:
                self._note_weights(piece, entry, stop)
            return None
        left = self._left(
            rest, stop, recorded_piece(entry, index, stop - entry["start"])
        )
        if left is None:
            self._note_weights(piece, entry, stop)
        return left

    def _left(self, rest: Piece, stop: int, recorded: Piece) -> Piece | None:
        """Add the recorded part of `rest`; return what is left, None if it is over."""
        start = self._solver.step
        recorded = replace(recorded, index=rest.index, is_split=rest.is_split)
        solved = self._solver.add(recorded)
        if solved is None or solved.steps != stop - start:
            return None
        if rest.steps is not None:
            if rest.steps <= solved.steps:
                return None
            return replace(rest, steps=rest.steps - solved.steps, is_split=True)
        spans = self._solver.spans[PRIMARY]
        per_epoch = spans.windows_per_epoch(rest.seq_len)
        given = solved.delivered(PRIMARY)
        wanted = int(rest.epochs * per_epoch) - given
        if wanted <= 0:
            return None
        epochs = rest.epochs - Fraction(given, per_epoch)
        return replace(rest, epochs=epochs, is_split=True)
