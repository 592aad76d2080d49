"""The state of a run: a small dict of everything that determined its past batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._order import ARITHMETIC_VERSION, PRIMARY
from roxxel_curriculum._plan.solution import ResolvedPhase
from roxxel_curriculum._plan.withdrawn import recorded_withdrawals
from roxxel_curriculum.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_curriculum._plan.solution import Solution

_STATE: dict[str, type] = {
    "arithmetic": int,
    "seed": int,
    "step": int,
    "longest": int,
    "overlap": int,
    "sources": list,
    "phases": list,
    "skips": list,
}
_WITHOUT: dict[str, type] = {
    "step": int,
    "source": str,
    "documents": dict,
    "tokens": dict,
}
_INDICES: dict[str, type] = {"count": int, "ranges": int, "packed": str}
_SOURCE: dict[str, type] = {
    "name": str,
    "fingerprint": str,
    "tokens": int,
    "dtype": str,
    "policy": dict,
}
_PHASE: dict[str, type] = {
    "start": int,
    "batch_size": int,
    "seq_len": int,
    "weights": dict,
    "edited": bool,
}


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
                "fingerprint": source.reader.fingerprint,
                "tokens": int(source.reader.num_tokens),
                "dtype": np.dtype(source.reader.dtype).name,
                "tokenizer": source.reader.tokenizer,
                "spans": solution.spans[source.name].num_spans,
                **({"unit": source.unit} if source.unit > 1 else {}),
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
                "weights": dict(phase.weights),
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
    state = _renamed(state, declaration.primary, PRIMARY)
    return state | {"digest": _digest(state)}


def checked_state(state: Mapping[str, Any], primary: str) -> dict[str, Any]:
    """Check a state; return it with the name of the primary in place of `"self"`.

    Raises:
        StateMismatch: `Sampler.state` did not write this state, or another source of
            the run is named `primary`.
    """
    check_form(state)
    names = {source["name"] for source in state["sources"]} - {PRIMARY}
    if primary in names:
        found = f"the run has another source named {primary!r}"
        raise StateMismatch([f"{found}; give the primary another name"])
    return _renamed(state, PRIMARY, primary)


def _renamed(state: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a state, without its digest, in which a source has another name."""

    def name_of(name: str) -> str:
        return new if name == old else name

    def with_weights(phase: Mapping[str, Any]) -> dict[str, Any]:
        weights = {name_of(name): each for name, each in phase["weights"].items()}
        return {**phase, "weights": dict(sorted(weights.items()))}

    found = {
        **{name: value for name, value in state.items() if name != "digest"},
        "sources": [
            {**source, "name": name_of(source["name"])} for source in state["sources"]
        ],
        "phases": [with_weights(phase) for phase in state["phases"]],
    }
    if "without" in state:
        found["without"] = [
            {**entry, "source": name_of(entry["source"])} for entry in state["without"]
        ]
    return found


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


def _digest(state: Mapping[str, Any]) -> str:
    """Return the hash of the state's values under the keys that `state_of` writes."""
    names = (*_STATE, "without")
    parts = {name: state[name] for name in names if name in state}
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_form(state: Any) -> None:
    """Raise `StateMismatch` unless `Sampler.state` wrote this state, unchanged.

    States of earlier releases have no digest, so only their form is checked.
    """
    _check_keys(state, _STATE, "it")
    if state["arithmetic"] != ARITHMETIC_VERSION:
        raise StateMismatch(
            [f"arithmetic was {state['arithmetic']} and is now {ARITHMETIC_VERSION}"]
        )
    for source in state["sources"]:
        _check_keys(source, _SOURCE, "one of its sources")
        _check(_is_policy(source["policy"]), f"the policy {source['policy']}")
        _check("tokenizer" in source, "a source without a tokenizer")
        unit = source.get("unit", 2)
        _check(_is(unit, int) and unit > 1, f"bins of {unit!r:.50} tokens")
    for phase in state["phases"]:
        _check_keys(phase, _PHASE, "one of its phases")
        _check(
            min(phase["batch_size"], phase["seq_len"]) > 0,
            f"a phase of {phase['batch_size']} x {phase['seq_len']}",
        )
        _check(_are_weights(phase["weights"]), f"the weights {phase['weights']}")
    names = {source["name"] for source in state["sources"]}
    drawn = drawn_sources(state)
    unknown = ", ".join(sorted(drawn - names))
    _check(drawn <= names, f"weights of unknown sources ({unknown})")
    _check(state["step"] >= 0, f"step {state['step']}")
    _check(state["longest"] > 0, f"longest {state['longest']}")
    _check(state["overlap"] in (0, 1), f"overlap {state['overlap']}")
    _check(_are_skips(state["skips"], state["step"]), f"skips {state['skips']}")
    _check_withdrawals(state, names)
    starts = [phase["start"] for phase in state["phases"]]
    bounds = [*starts, state["step"]]
    _check(
        bounds[0] == 0 and all(start < stop for start, stop in pairwise(bounds)),
        f"phases from {starts} and step {state['step']}",
    )
    if "digest" in state and not _is_unchanged(state):
        raise StateMismatch(
            ["it was changed after Sampler.state wrote it: the digest does not match"]
        )


def _check_withdrawals(state: Mapping[str, Any], names: set[str]) -> None:
    without = state.get("without", [])
    _check(isinstance(without, list), f"withdrawals {without!r}")
    for entry in without:
        _check_keys(entry, _WITHOUT, "one of its withdrawals")
        is_known = entry["source"] in names
        _check(is_known, f"a withdrawal of source {entry['source']!r}")
        for what in ("documents", "tokens"):
            _check_keys(entry[what], _INDICES, f"the {what} of a withdrawal")
            ranges = entry[what]["ranges"]
            _check(0 <= ranges < 2**40, f"{ranges} withdrawn ranges of {what}")
    try:
        steps = [each.step for each in recorded_withdrawals(state)]
    except (ValueError, OverflowError) as error:
        raise StateMismatch([f"one of its withdrawals is wrong: {error}"]) from error
    _check(
        steps == sorted(steps) and all(0 <= at < state["step"] for at in steps),
        f"withdrawals from steps {steps}",
    )


def _is_unchanged(state: Mapping[str, Any]) -> bool:
    try:
        return state["digest"] == _digest(state)
    except (TypeError, ValueError, RecursionError):
        return False


def _check(is_valid: bool, what: str) -> None:
    if not is_valid:
        raise StateMismatch([f"it has {what}, which Sampler.state never writes"])


def _check_keys(part: Any, kinds: Mapping[str, type], what: str) -> None:
    for key, kind in kinds.items():
        if not isinstance(part, Mapping) or not _is(
            cast("Mapping[str, Any]", part).get(key), kind
        ):
            missing = f"{what} has no {key!r} of type {kind.__name__}"
            raise StateMismatch([f"{missing}, which Sampler.state always writes"])


def _is(value: Any, kind: type) -> bool:
    """Return whether `value` is a `kind`; a bool is not an int here."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _is_policy(policy: Mapping[str, Any]) -> bool:
    try:
        Policy(policy["epochs"], policy["then"])
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _are_weights(weights: Mapping[Any, Any]) -> bool:
    return bool(weights) and all(
        isinstance(name, str) and _is(weight, int) and weight > 0
        for name, weight in weights.items()
    )


def _are_skips(skips: Sequence[Any], step: int) -> bool:
    for skip in skips:
        pair = cast("Sequence[Any]", skip) if isinstance(skip, list | tuple) else ()
        if len(pair) != 2 or not all(_is(number, int) for number in pair):
            return False
        at, count = pair
        if not 0 <= at < step or count < 1:
            return False
    return True
