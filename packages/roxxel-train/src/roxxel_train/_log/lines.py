"""Lines of the log files: how they are written, and how a resume cuts them back."""

from __future__ import annotations

import json
import math
import os
import time
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def text_line(level: str, message: str, traceback: str = "") -> str:
    """Return a line of `system.log`: UTC time, level, message, then the traceback."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{now} {level} {message}\n{traceback}"


def json_line(row: Mapping[Any, Any]) -> str:
    """Return a row as one line of JSON, NaN and infinities as text.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: Two keys have the same text, or the row contains itself.
    """
    return json.dumps(_finite(plain_row(row)), allow_nan=False) + "\n"


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy of a row in Python's own types.

    Scalars and arrays of NumPy and JAX become numbers and lists; keys become text.

    Raises:
        ValueError: Two keys have the same text.
    """
    return cast("dict[str, Any]", _plain(dict(row)))


def end_torn_line(path: Path) -> None:
    """Add a newline to a file whose last line has none."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.write(b"\n")


def drop_torn_row(path: Path) -> bool:
    """Truncate a last line without a newline; return whether there was one.

    A process that was killed while it wrote leaves such a line.
    """
    if not path.is_file():
        return False  # a pipe or a device
    content = path.read_bytes()
    kept = content.rfind(b"\n") + 1
    os.truncate(path, kept)
    return kept < len(content)


def cut_rows(path: Path, step: int, *, evaluated: bool = True) -> int:
    """Truncate a file before its first row after `step`.

    Steps never decrease from row to row, and an evaluation is the last row of its step,
    so the rows that stay are a prefix of the file. Lines that are not rows stay.

    Args:
        path: The file.
        step: The last step whose rows stay.
        evaluated: Keep the evaluation of that step as well.

    Returns:
        Number of lines dropped.
    """
    if not path.is_file():
        return 0
    kept = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _position(line) > (step, evaluated):
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
            raise ValueError(
                f"keys of a row have the same text: {list(items)}; rename one of them"
            )
        return named
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value


def _finite(value: Any) -> Any:
    """Replace the floats that JSON lacks by their text."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _finite(inner) for name, inner in items}
    if isinstance(value, list):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _position(line: bytes) -> tuple[int, bool]:
    """Return the step of a row and whether it is an evaluation; step 0 otherwise."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return 0, False
    row = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    step = row.get("step")
    return (step if isinstance(step, int) else 0), row.get("kind") == "eval"
