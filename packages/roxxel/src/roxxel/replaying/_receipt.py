"""The receipt of a replay: what was trained, from what, with which results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the types

from msgspec import Struct

from roxxel.runs._receipts import Receipt, ReceiptKind

_TOKENS = re.compile(r"tokens:\[[0-9]{1,18},[0-9]{1,18}\)")


class TheCheckpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint from which the branches began."""

    step: int
    digest: str


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a branch ended; attributes as in `Branch`."""

    step: int
    state: str
    feed: str


class Equality(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the control was its run; attributes as in `Comparison`."""

    step: int | None
    is_equal: bool
    num_rows: int
    first_difference: int | None


class ReplayReceipt(Receipt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a replay trained, from what, with which results."""

    without: Mapping[str, Sequence[int | list[int] | str]]
    start: int
    each: bool
    checkpoint: TheCheckpoint | None
    control_is_the_run: Equality
    branches: dict[str, Result]
    losses: dict[str, dict[str, dict[int, float]]]
    distances: dict[str, float]

    def __post_init__(self) -> None:
        # msgspec cannot bound the kinds of a union: with a tuple of two it reads the
        # memory of another.
        for source, items in self.without.items():
            for item in items:
                if not _is_listed(item):
                    raise ValueError(
                        f"`without.{source}` holds {item!r}, which is no document, no "
                        "range of documents [3, 7] and no range of tokens"
                    )


def _is_listed(item: int | list[int] | str) -> bool:
    """Return whether an item has the form of `Listed`; a text must not name a file."""
    if isinstance(item, str):
        return _TOKENS.fullmatch(item) is not None
    bounds = item if isinstance(item, list) else [item, item + 1]
    return len(bounds) == 2 and 0 <= bounds[0] < bounds[1] < 2**62


REPLAY_RECEIPTS = ReceiptKind("replay", ReplayReceipt)
