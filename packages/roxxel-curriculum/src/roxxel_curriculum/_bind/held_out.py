"""Whether held-out data measures what a reader of its loss believes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_curriculum._bind.sources import version_fingerprints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import Source


def notes_on_held_out(
    training: Sequence[Source], held_out: Sequence[Source], plan: Plan, label: str
) -> Iterator[str]:
    """Yield a sentence for each held-out source that was trained on or is read twice.

    `label` names the set, and precedes the name of a source.
    """
    for source in held_out:
        for trained in training:
            ours, theirs = (
                version_fingerprints(each.reader) for each in (trained, source)
            )
            if ours & theirs:
                yield (
                    f"{label} {source.name!r} is the training corpus of source "
                    f"{trained.name!r}, so its loss says nothing about text that the "
                    "model has not seen; hold documents out with roxxel-format split"
                )
    for row in plan.sources:
        if row.epochs > 1:
            yield (
                f"{label} {row.name!r} has {row.num_tokens:,} tokens, and each "
                f"evaluation reads them {row.epochs:.2f} times; use fewer steps"
            )
