"""What a run has read in each of its phases, from its rows and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_store.records import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from roxxel_train.columns import Table
    from roxxel_train.run_folder import Checkpoint


@dataclass(frozen=True)
class PhaseFacts:
    """The trained part of one phase."""

    index: int
    start: int
    shape: str  # such as `8 x 257`; empty if no checkpoint records the phase
    # Planned share of each source. Empty if no checkpoint records the phase.
    shares: Mapping[str, float]
    tokens: Mapping[str, int]  # tokens read in this phase, by source


def trained_phases(
    train: Table,
    checkpoints: Sequence[Checkpoint],
    first_step: int,
    tokens_before: Mapping[str, int],
) -> Iterable[PhaseFacts]:
    """Yield the trained part of each phase that rows or the newest checkpoint mention.

    Args:
        train: Training rows of the run.
        checkpoints: Checkpoints of the run, oldest first.
        first_step: The first step of the run, above 0 in a branch. Phases that end
            before this step are phases of the parent, and are left out.
        tokens_before: Tokens before `first_step`, by source.
    """
    recorded = _recorded_phases(checkpoints)
    for index in sorted(recorded)[:-1]:
        if recorded[index + 1]["start"] <= first_step:
            del recorded[index]
    before = tokens_before
    last_step = first_step
    ends = _ends(train)
    for index in sorted({*ends, *recorded}):
        step, so_far = ends.get(index, (last_step, before))
        given = {name: count - before.get(name, 0) for name, count in so_far.items()}
        entry = recorded.get(index, {})
        weights = entry.get("weights", {})
        total = sum(weights.values())
        yield PhaseFacts(
            index=index,
            start=max(entry.get("start", last_step), first_step),
            shape=f"{entry['batch_size']} x {entry['seq_len']}" if entry else "",
            shares={name: weight / total for name, weight in weights.items()},
            tokens=given,
        )
        before = so_far
        last_step = step


def _ends(train: Table) -> dict[int, tuple[int, dict[str, int]]]:
    """Return the step of the last row of each phase, and its tokens by source."""
    phases, steps = train.full("phase", -1.0), train.steps
    field = "tokens_by_source"
    counts = {name: train.full_counts(field, name) for name in train.sources(field)}
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for phase in np.unique(phases[phases >= 0]).tolist():
        row = np.flatnonzero(phases == phase)[-1]
        of_row = {name: each[row] for name, each in counts.items()}
        tokens = {name: int(x) for name, x in of_row.items() if not np.isnan(x)}
        found[int(phase)] = int(steps[row]), tokens
    return found


def _recorded_phases(
    checkpoints: Sequence[Checkpoint],
) -> dict[int, dict[str, Any]]:
    """Return the phases that the newest checkpoint describes, by declared index."""
    data = checkpoints[-1].extra.get("data") if checkpoints else None
    entries = (
        cast("dict[str, Any]", data).get("phases") if isinstance(data, dict) else []
    )
    if not isinstance(entries, list) or not all(map(_is_phase, entries)):
        return {}
    found: dict[int, dict[str, Any]] = {}
    for entry in cast("list[dict[str, Any]]", entries):
        if entry["edited"] and found:
            # An edit of the weights starts a new entry of the same phase.
            index = max(found)
            found[index] = {**entry, "start": found[index]["start"]}
        else:
            found[len(found)] = entry
    return found


def _is_phase(entry: Any) -> bool:
    """Return whether an entry has the form of a phase in `Sampler.state`."""
    try:
        counts = [entry["start"], entry["batch_size"], entry["seq_len"]]
        weights = list(entry["weights"].values())
        return "edited" in entry and sum(weights) > 0 and all(map(is_count, counts))
    except (AttributeError, KeyError, TypeError):
        return False
