"""What differs between the past in a state and the past of a curriculum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._errors import CurriculumError, StateMismatch
from roxxel_curriculum._plan.resolved_phase import Skip
from roxxel_curriculum._plan.solver import Solver
from roxxel_curriculum.phase import Phase
from roxxel_curriculum.policy import Policy
from roxxel_curriculum.state import check_form, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._plan.declaration import Declaration, Solution


def check_past(solution: Solution, seed: int, state: Mapping[str, Any]) -> None:
    """Check that a solved curriculum has the past in a state.

    Raises:
        StateMismatch: The past differs; the message names every difference.
    """
    check_form(state)
    step = state["step"]
    found = run_differences(solution.declaration, solution.longest, seed, state)
    if step > solution.total_steps:
        found.append(
            f"the state is at step {step}, the curriculum has {solution.total_steps}"
        )
    else:
        live = state_of(solution, seed, step)
        found += _phase_differences(live["phases"], state["phases"])
        found = found or policy_differences(solution.declaration, state)
    if found:
        raise StateMismatch(found)


def run_differences(
    declaration: Declaration, longest: int, seed: int, state: Mapping[str, Any]
) -> list[str]:
    """Return what differs in seed, sizes, sources and skips, a sentence each."""
    live = {"seed": seed, "longest": longest, "overlap": declaration.overlap}
    found = [
        f"{name} was {state[name]} and is now {value}"
        for name, value in live.items()
        if state[name] != value
    ]
    readers = {source.name: source.reader for source in declaration.sources}
    drawn = {name for phase in state["phases"] for name in phase["weights"]}
    for source in state["sources"]:
        name = source["name"]
        if name not in drawn:
            continue
        if name not in readers:
            found.append(
                f"source {name!r} gave samples before step {state['step']} and is gone "
                "or renamed"
            )
            continue
        reader = readers[name]
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


def policy_differences(declaration: Declaration, state: Mapping[str, Any]) -> list[str]:
    """Return the changed policies of sources that had run out before the state's step.

    The past is solved with the policies in the state, and again with each policy that
    has changed. A change that moves no exhaustion in the past is allowed.
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
    if not changed:
        return []
    before = _past_legs(declaration, recorded, state)
    found: list[str] = []
    for source in changed:
        policies = recorded | {source.name: source.policy}
        if before is None or before != _past_legs(declaration, policies, state):
            found.append(
                f"the policy of source {source.name!r} was "
                f"{str(recorded[source.name])!r} and is now {str(source.policy)!r}, "
                f"which changes what came before step {state['step']}"
            )
    return found


def _past_legs(
    declaration: Declaration, policies: Mapping[str, Policy], state: Mapping[str, Any]
) -> list[list[tuple[int, tuple[str, ...]]]] | None:
    """Return where each leg of the past starts, and its sources.

    None if the past cannot be solved with these policies.
    """
    past = replace(
        declaration,
        sources=tuple(
            replace(source, policy=policies.get(source.name, source.policy))
            for source in declaration.sources
        ),
        longest=state["longest"],
        skips=tuple(Skip(at, count) for at, count in state["skips"]),
        max_epochs=None,
    )
    solver = Solver(past)
    entries = state["phases"]
    stops = [*(entry["start"] for entry in entries[1:]), state["step"]]
    for index, (entry, stop) in enumerate(zip(entries, stops, strict=True)):
        try:
            solver.add(recorded_phase(entry, stop - entry["start"]), index)
        except CurriculumError:
            return None
    if solver.early_stop:
        return None
    return [
        [(leg.start, leg.blend.sources) for leg in phase.legs]
        for phase in solver.phases
    ]


def recorded_phase(entry: Mapping[str, Any], steps: int) -> Phase:
    """Return a phase of a state as a declared phase of `steps` steps."""
    return Phase(steps, entry["batch_size"], entry["seq_len"], entry["weights"])


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
