"""Rows of metrics as plain values, and as lines of a file that a resume cuts back."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CHUNK_BYTES = 1 << 16


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy of a row in Python's own types.

    Scalars and arrays of numpy and JAX become numbers and lists, keys become text.

    Raises:
        ValueError: Two keys are the same text.
    """
    return cast("dict[str, Any]", _plain(dict(row)))


def json_line(row: Mapping[Any, Any]) -> str:
    """Return a row as one line of JSON; NaN and infinities as text.

    Raises:
        TypeError: It holds a value that JSON cannot.
        ValueError: Two keys are the same text, or it holds itself.
    """
    return json.dumps(_finite(plain_row(row)), allow_nan=False) + "\n"


def drop_torn_row(path: Path) -> bool:
    """Cut a last line that has no end, and say whether there was one.

    A process that was killed while it wrote leaves one.
    """
    if not path.exists():
        return False
    with path.open("rb+") as file:
        kept = size = file.seek(0, os.SEEK_END)
        while kept:
            start = max(0, kept - _CHUNK_BYTES)
            file.seek(start)
            newline = file.read(kept - start).rfind(b"\n")
            kept = start
            if newline >= 0:
                kept = start + newline + 1
                break
        if kept < size:
            file.truncate(kept)
    return kept < size


def cut_rows(path: Path, step: int, *, evaluated: bool = True) -> int:
    """Cut the file in place before the first row after `step`; count what goes.

    Steps never decrease from row to row, and an evaluation comes last in its step, so
    what stays is a beginning of the file. A line that is no row of ours stays too.

    Args:
        path: The file.
        step: The last step whose rows stay.
        evaluated: Whether its evaluation stays too.
    """
    if not path.exists():
        return 0
    kept = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _place_of(line) > (step, evaluated):
            os.truncate(path, kept)
            return len(lines) - number
        kept += len(line)
    return 0


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        named = {str(name): _plain(inner) for name, inner in items.items()}
        if len(named) < len(items):
            raise ValueError(f"keys of a row are the same as text: {list(items)}")
        return named
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value


def _finite(value: Any) -> Any:
    """Return `value` with the floats that JSON cannot hold as text."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _finite(inner) for name, inner in items}
    if isinstance(value, list):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _place_of(line: bytes) -> tuple[int, bool]:
    """Return the step of a row and whether it is an evaluation; 0 if it is no row."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return 0, False
    row = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    step = row.get("step")
    return (step if isinstance(step, int) else 0), row.get("kind") == "eval"
