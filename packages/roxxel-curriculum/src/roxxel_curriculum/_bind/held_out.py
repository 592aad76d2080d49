"""Check that held-out data measures what its loss claims to measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store import roxxel_command
from roxxel_store.screen import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_format import TokenReader

    from roxxel_curriculum._plan.plan import Plan
    from roxxel_curriculum._plan.solution import Source


def notes_on_held_out(
    training: Sequence[Source], held_out: Sequence[Source], plan: Plan, label: str
) -> Iterator[str]:
    """Yield a sentence for each held-out source that is trained on or is read twice.

    `label` names the set, and precedes the name of a source.
    """
    for source in held_out:
        for trained in training:
            shares = _what_it_shares(trained.reader, source.reader)
            if shares:
                yield (
                    f"{label} {source.name!r} {shares} source {trained.name!r}, so its "
                    "loss says nothing about text that the model has not seen; hold "
                    f"documents out with `{roxxel_command('prepare write --split')}`"
                )
    for row in plan.sources:
        if row.epochs > 1:
            yield (
                f"{label} {row.name!r} has {row.num_tokens:,} tokens, and each "
                f"evaluation reads them {row.epochs:.2f} times; evaluate on fewer "
                "steps or smaller batches, or hold out more documents"
            )


def _what_it_shares(training: TokenReader, held_out: TokenReader) -> str:
    """Return the words between the names of both corpora; none if they share nothing.

    The name of the held-out corpus stands before the words.
    """
    if {*training.versions} & {*held_out.versions}:
        return "is the training corpus of"
    trained, digests = {*training.shard_digests}, held_out.shard_digests
    number = sum(digest in trained for digest in digests)
    if not number:
        return ""
    shards = counted(len(digests), "shard")
    return f"shares {number} of its {shards} with the training corpus of"
