"""The state of a run: a small dict of everything that determined its past batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._plan.solution import ResolvedPhase

if TYPE_CHECKING:
    from roxxel_curriculum._plan.solution import Solution

_PARTS = (
    *("arithmetic", "seed", "step", "longest", "overlap", "sources", "phases", "skips"),
    "without",
)
"""The keys of a state that its digest covers; a state may lack the last."""


def state_of(
    solution: Solution, seed: int, step: int, columns: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the state from which a run resumes at `step`, as a dict for JSON.

    `columns` has the digest of the column `loss_mask` of each source, None without a
    column. It is empty for a run without the field `loss_mask`.
    """
    declaration = solution.declaration
    state: dict[str, Any] = {
        "arithmetic": ARITHMETIC_VERSION,
        "seed": seed,
        "step": step,
        "longest": solution.longest,
        "overlap": declaration.overlap,
        "sources": [
            {
                "name": source.name,
                **(
                    {}
                    if source.order_name == source.name
                    else {"order_name": source.order_name}
                ),
                "fingerprint": source.fingerprint,
                "tokens": source.num_tokens,
                "dtype": source.dtype.name,
                "tokenizer": source.tokenizer,
                "spans": solution.spans[source.name].num_spans,
                **({"unit": source.unit} if source.unit > 1 else {}),
                **({"part": source.part._asdict()} if source.part else {}),
                "policy": {"epochs": source.policy.epochs, "then": source.policy.then},
                **(
                    {"loss_mask": columns[source.name]}
                    if source.name in columns
                    else {}
                ),
            }
            for source in declaration.sources
        ],
        "phases": [
            {
                "start": phase.start,
                "batch_size": phase.batch_size,
                "seq_len": phase.seq_len,
                "weights": dict(sorted(phase.weights.items())),
                "edited": phase.is_edited,
            }
            for phase in solution.phases
            if phase.start < step
        ],
        "skips": [
            [skip.at, skip.steps] for skip in declaration.skips if skip.at < step
        ],
    }
    without = [each.to_json() for each in solution.withdrawals if each.step < step]
    if without:
        state["without"] = without
    return state | {"digest": _digest(state)}


def checked_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state; raise StateMismatch unless `Sampler.state` wrote it."""
    _check_unchanged(state)
    return state


def state_before(state: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the state that the run of a state had at an earlier step.

    Raises:
        StateMismatch: `Sampler.state` did not write the state.
    """
    _check_unchanged(state)
    earlier = {**state, "step": step}
    earlier["phases"] = [each for each in state["phases"] if each["start"] < step]
    earlier["skips"] = [skip for skip in state["skips"] if skip[0] < step]
    without = [each for each in state.get("without", []) if each["step"] < step]
    if without:
        earlier["without"] = without
    else:
        earlier.pop("without", None)
    return earlier | {"digest": _digest(earlier)}


def recorded_phases(state: Mapping[str, Any]) -> list[ResolvedPhase]:
    """Return the phases of a state, without skips, legs and cursors.

    `ResolvedPhase.index` counts the recorded phases here, not the declared phases.
    """
    entries = state["phases"]
    bounds = [*(entry["start"] for entry in entries), state["step"]]
    return [
        ResolvedPhase(
            index,
            entry["start"],
            stop - entry["start"],
            entry["batch_size"],
            entry["seq_len"],
            entry["weights"],
            entry["edited"],
        )
        for index, (entry, stop) in enumerate(zip(entries, bounds[1:], strict=True))
    ]


def drawn_sources(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the sources that gave rows before the state's step."""
    return {name for phase in state["phases"] for name in phase["weights"]}


def recorded_masks(state: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the digest of the column `loss_mask` by source name; None without one.

    Has only the sources that the run has read with the field `loss_mask`.
    """
    drawn = drawn_sources(state)
    return {
        source["name"]: source["loss_mask"]
        for source in state["sources"]
        if "loss_mask" in source and source["name"] in drawn
    }


def _digest(state: Mapping[str, Any]) -> str:
    """Return the hash of the state's values under the keys that `state_of` writes."""
    parts = {name: state[name] for name in _PARTS if name in state}
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _check_unchanged(state: Any) -> None:
    """Raise `StateMismatch` unless `Sampler.state` wrote this state, unchanged."""
    for name in ("digest", "arithmetic"):
        if not isinstance(state, Mapping) or name not in state:
            found = f"it has no {name}, which Sampler.state always writes"
            if isinstance(state, Mapping) and "data" in state:
                found += ' (the record of a checkpoint holds the state as ["data"])'
            raise StateMismatch([found])
    known = cast("Mapping[str, Any]", state)
    if known["arithmetic"] != ARITHMETIC_VERSION:
        raise StateMismatch(
            [f"arithmetic was {known['arithmetic']} and is now {ARITHMETIC_VERSION}"]
        )
    if not _is_unchanged(known):
        raise StateMismatch(
            ["it was changed after Sampler.state wrote it: the digest does not match"]
        )


def _is_unchanged(state: Mapping[str, Any]) -> bool:
    try:
        return state["digest"] == _digest(state)
    except (TypeError, ValueError, RecursionError):
        return False
