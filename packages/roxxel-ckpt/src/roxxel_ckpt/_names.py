"""The names of a checkpoint's files, and of steps in messages."""

from __future__ import annotations

COMMIT_FILE = "checkpoint.json"
STATE = "state"
# First part of the names of leaves that `save(state=)` was given.
STATE_ROOT = "state"
METADATA_FILE = f"{STATE}/_METADATA"
ABANDONED = "abandoned"


def listed(steps: list[int]) -> str:
    """Return steps as text: the first ten, and the number of further steps."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )
