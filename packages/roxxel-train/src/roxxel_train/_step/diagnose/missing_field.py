"""Explains why a loss function cannot read a field of its batch.

If the batch is a single array, JAX reports a field as an unsupported index, in a
traceback of dozens of lines that never mention `fields=`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, cast, get_args

from roxxel_curriculum import Field

from roxxel_train._step.fed import Fed

if TYPE_CHECKING:
    from collections.abc import Generator

_STRING_INDEX = re.compile(r"string index.*'(\w+)'")
_FIELDS: tuple[str, ...] = get_args(Field)
_LIBRARIES = {"jax", "flax"}


class MissingFieldError(TypeError):
    """A function reads a field that its batches do not have."""


@contextmanager
def explained(fed: Any) -> Generator[None]:
    """Raise `MissingFieldError` for an error about a field that a batch lacks.

    `fed` is what the traced function receives: a batch, or a `Fed` with a batch.
    """
    try:
        yield
    except (TypeError, KeyError) as error:
        words = _explanation(error, fed.batch if isinstance(fed, Fed) else fed)
        if words is None:
            raise
        # The traceback of JAX says nothing more, and hides this sentence.
        raise MissingFieldError(words) from None


def _explanation(error: TypeError | KeyError, batch: Any) -> str | None:
    """Return the sentence about a missing field; None for any other error."""
    if isinstance(batch, Mapping):
        field = error.args[0] if isinstance(error, KeyError) and error.args else None
        if field not in _FIELDS or field in batch:
            return None
        names = ", ".join(map(repr, cast("Mapping[str, Any]", batch)))
        return (
            f"{_position(error)} reads batch[{field!r}], but the batches of this run "
            f"have {names}; add {field!r} to fields="
        )
    found = _STRING_INDEX.search(str(error))
    if found is None:
        return None
    other = found[1] if found[1] in _FIELDS and found[1] != "tokens" else "segment_ids"
    return (
        f"{_position(error)} reads batch[{found[1]!r}], but a batch of this run is one "
        f'array of tokens; pass fields=("tokens", "{other}") to get a dict of arrays, '
        f'or fields = ["tokens", "{other}"] under [trainer]'
    )


def _position(error: BaseException) -> str:
    """Return file and line of the innermost frame outside JAX and Flax."""
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if _LIBRARIES.isdisjoint(Path(frame.filename).parts)
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}"
