"""The state of a run: what the order of its past depends on, and how it may differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._policy import Policy
from roxxel_curriculum._rounds import cut_spans
from roxxel_curriculum._solved import Piece, Skip
from roxxel_curriculum._solver import Solver
from roxxel_curriculum._state_form import check_form
from roxxel_curriculum._version import ARITHMETIC_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._declaration import Declaration, SolvedRun
    from roxxel_curriculum._solved import SolvedPhase


def state_of(schedule: SolvedRun, seed: int, step: int) -> dict[str, Any]:
    """Return what the order of the steps before `step` depends on, for JSON."""
    declaration = schedule.declaration
    return {
        "arithmetic": ARITHMETIC_VERSION,
        "seed": seed,
        "step": step,
        "longest": schedule.longest,
        "overlap": declaration.overlap,
        "sources": [
            {
                "name": source.name,
                "fingerprint": source.reader.fingerprint,
                "tokens": int(source.reader.num_tokens),
                "dtype": np.dtype(source.reader.dtype).name,
                "tokenizer": source.reader.tokenizer,
                "spans": schedule.spans[source.name].num_spans,
                "policy": {"epochs": source.policy.epochs, "then": source.policy.then},
            }
            for source in declaration.sources
        ],
        "phases": [
            {
                "start": phase.start,
                "batch_size": phase.piece.batch_size,
                "seq_len": phase.piece.seq_len,
                "weights": dict(phase.piece.weights),
                "edited": phase.piece.is_split,
            }
            for phase in schedule.phases
            if phase.start < step
        ],
        "skips": [
            [skip.at, skip.steps] for skip in declaration.skips if skip.at < step
        ],
    }


def differences(schedule: SolvedRun, seed: int, state: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing of a state's past that the schedule has not."""
    check_form(state)
    step = state["step"]
    found = run_differences(schedule.declaration, schedule.longest, seed, state)
    if step > schedule.total_steps:
        found.append(
            f"the state is at step {step}, the curriculum has {schedule.total_steps}"
        )
        return found
    live = state_of(schedule, seed, step)
    found += _phase_differences(live["phases"], state["phases"])
    if not found:
        found += _policy_differences(schedule, state)
    return found


def run_differences(
    declaration: Declaration, longest: int, seed: int, state: Mapping[str, Any]
) -> list[str]:
    """Return what differs in seed, sizes, sources and skips."""
    found: list[str] = []
    for name, value in (
        ("seed", seed),
        ("longest", longest),
        ("overlap", declaration.overlap),
    ):
        if state[name] != value:
            found.append(f"{name} was {state[name]} and is now {value}")
    live = {source.name: source for source in declaration.sources}
    drawn = {name for phase in state["phases"] for name in phase["weights"]}
    for source in state["sources"]:
        name = source["name"]
        if name not in drawn:
            continue
        if name not in live:
            found.append(
                f"source {name!r} gave samples before step {state['step']} and is gone "
                "or renamed"
            )
            continue
        reader = live[name].reader
        now = {
            "fingerprint": reader.fingerprint,
            "tokens": int(reader.num_tokens),
            "dtype": np.dtype(reader.dtype).name,
            "tokenizer": reader.tokenizer,
        }
        found.extend(
            f"the {what} of source {name!r} was {source[what]} and is now {value}"
            for what, value in now.items()
            if source[what] != value
        )
    past: dict[int, int] = dict(state["skips"])
    here = {skip.at: skip.steps for skip in declaration.skips}
    found.extend(
        f"at step {at} the run skipped the data of {past.get(at, 0)} steps, "
        f"the curriculum skips that of {here.get(at, 0)}"
        for at in sorted(past.keys() | {at for at in here if at < state["step"]})
        if past.get(at, 0) != here.get(at, 0)
    )
    return found


def recorded_piece(entry: Mapping[str, Any], index: int, steps: int) -> Piece:
    """Return a phase of a state as a piece of `steps` steps."""
    return Piece(
        index,
        entry["batch_size"],
        entry["seq_len"],
        entry["weights"],
        steps,
        is_split=entry["edited"],
    )


def _phase_differences(
    live: Sequence[Mapping[str, Any]], past: Sequence[Mapping[str, Any]]
) -> list[str]:
    found: list[str] = []
    for index in range(max(len(live), len(past))):
        if index >= len(live) or index >= len(past):
            entry = (past if index >= len(live) else live)[index]
            had, has = ("had", "has not") if index >= len(live) else ("had not", "has")
            found.append(
                f"the run {had} a phase that began at step {entry['start']}, "
                f"the curriculum {has}"
            )
            continue
        found.extend(
            f"{what} of phase {index} was {past[index][what]} "
            f"and is now {live[index][what]}"
            for what in ("start", "batch_size", "seq_len", "weights")
            if past[index][what] != live[index][what]
        )
    return found


def _policy_differences(schedule: SolvedRun, state: Mapping[str, Any]) -> list[str]:
    """Return the changed policies of sources that had run out."""
    live = {source.name: source.policy for source in schedule.declaration.sources}
    recorded = {
        source["name"]: Policy(source["policy"]["epochs"], source["policy"]["then"])
        for source in state["sources"]
        if source["name"] in live
    }
    changed = [name for name in recorded if recorded[name] != live[name]]
    if not changed:
        return []
    step = state["step"]
    before = _past_legs(schedule, {**live, **recorded}, state)
    found: list[str] = []
    for name in changed:
        after = _past_legs(schedule, {**live, **recorded, name: live[name]}, state)
        if before is None or before != after:
            found.append(
                f"the policy of source {name!r} was {str(recorded[name])!r} and is now "
                f"{str(live[name])!r}, which changes what came before step {step}"
            )
    return found


def _past_legs(
    schedule: SolvedRun, policies: Mapping[str, Policy], state: Mapping[str, Any]
) -> list[list[tuple[int, tuple[str, ...]]]] | None:
    """Return where the past's legs begin and who is in them; None if it cannot be."""
    declaration = schedule.declaration
    solver = Solver(
        {
            source.name: cut_spans(
                source.reader.num_tokens, state["longest"], state["overlap"]
            )
            for source in declaration.sources
        },
        policies,
        [Skip(at, count) for at, count in state["skips"]],
    )
    entries = state["phases"]
    stops = [entry["start"] for entry in entries[1:]] + [state["step"]]
    for index, (entry, stop) in enumerate(zip(entries, stops, strict=True)):
        try:
            solver.add(recorded_piece(entry, index, stop - entry["start"]))
        except CurriculumError:
            return None
    return [_leg_marks(phase) for phase in solver.phases] if not solver.ended else None


def _leg_marks(phase: SolvedPhase) -> list[tuple[int, tuple[str, ...]]]:
    return [(leg.start, leg.blend.sources) for leg in phase.legs]
