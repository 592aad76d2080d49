"""The state of a run: what determined its past batches, and how a run goes on from it.

A state is a small dict for JSON. It has everything that determines the batches before
its step, so these batches can be computed from the run's folder and its corpora, even
if the program or the config of the run has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import ShardError, TokenReader

from roxxel_curriculum._arguments import Phase, Policy
from roxxel_curriculum._bind.sources import at_version, at_versions, opened
from roxxel_curriculum._errors import CurriculumError, StateMismatch
from roxxel_curriculum._order import ARITHMETIC_VERSION
from roxxel_curriculum._plan.changes import changes
from roxxel_curriculum._plan.solution import (
    Declaration,
    Part,
    ResolvedPhase,
    Skip,
    Solution,
    Solver,
    Source,
)
from roxxel_curriculum._withdrawn import Withdrawal, continued

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

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


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state; raise StateMismatch unless `Sampler.state` wrote just this."""
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
    return known


def state_before(state: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the state that the run of a state had at an earlier step.

    Raises:
        StateMismatch: `Sampler.state` did not write the state.
    """
    state = checked_state(state)
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


def recorded_masks(state: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the digest of the column `loss_mask` by source name; None without one.

    Has only the sources that the run has read with the field `loss_mask`.
    """
    drawn = _drawn_sources(state)
    return {
        source["name"]: source["loss_mask"]
        for source in state["sources"]
        if "loss_mask" in source and source["name"] in drawn
    }


def recorded_reader(
    state: Mapping[str, Any], name: str, reader: TokenReader
) -> TokenReader:
    """Return a reader of a source at the version that the run of a state reads.

    Args:
        state: As for `recorded_sampler`.
        name: Name of the source.
        reader: A reader of the corpus, at any version.

    Raises:
        StateMismatch: The state was modified.
        KeyError: The run has no such source.
        ShardError: The corpus lacks the version.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> web = PositionReader(10_000)
        >>> state = Curriculum(web, [Phase(9, 4, 129)]).sampler(seed=42).state(5)
        >>> recorded_reader(state, "self", web).num_tokens
        10000
    """
    return at_version(reader, _recorded_versions(checked_state(state))[name])


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
    drawn = _drawn_sources(state)
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
        sources=at_versions(declaration.sources, _recorded_versions(state)),
        longest=declaration.longest or state["longest"],
    )


def check_past(solution: Solution, seed: int, state: Mapping[str, Any]) -> None:
    """Raise `StateMismatch` if the solution differs from the steps in a state.

    `state` is the result of `checked_state`.
    """
    _check_kept(recorded(state), solution, (state["seed"], seed))


def _drawn_sources(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the sources that gave rows before the state's step."""
    return {name for phase in state["phases"] for name in phase["weights"]}


def _recorded_versions(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of each source of a state, by name."""
    return {source["name"]: source["fingerprint"] for source in state["sources"]}


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


def _digest(state: Mapping[str, Any]) -> str:
    """Return the hash of the state's values under the keys that `state_of` writes."""
    parts = {name: state[name] for name in _PARTS if name in state}
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _is_unchanged(state: Mapping[str, Any]) -> bool:
    try:
        return state["digest"] == _digest(state)
    except (TypeError, ValueError, RecursionError):
        return False


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
    drawn = _drawn_sources(state)
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
    # What the run trained from this step on, and the entry after it. The last entry
    # ends where the state was written, perhaps in the middle of its phase.
    entry, following = entries[at], entries[at + 1 : at + 2]
    if (
        # The run trained the phase to its end, and then began another.
        (following and not following[0].is_edited)
        # The phase has another shape, or a source is gone: it is not what was trained.
        or (entry.batch_size, entry.seq_len) != (rest.batch_size, rest.seq_len)
        or not entry.weights.keys() <= solver.spans.keys()
    ):
        return None
    # If `rest` still has the entry's weights, the run split it only by editing them
    # afterwards, and the split matters only if `rest` is longer than the entry.
    is_alike = entry.weights == rest.integer_weights
    if is_alike and (not following or solver.solve(rest, index).stop <= entry.stop):
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
