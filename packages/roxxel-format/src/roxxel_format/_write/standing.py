"""What stands where a corpus is to be: whole, or to keep, match, refuse or remove."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import Shard
from roxxel_format._spec.metadata import as_table
from roxxel_format._store.lock import WriteLock
from roxxel_format._store.names import Place, place_to_write
from roxxel_format._write.summary import WriteSummary, summarize

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format._write.intake import Intake
    from roxxel_format._write.tokenizers import TokenizerInfo


def keep(
    place: Place, arguments: dict[str, Any], started: float, *, alone: bool
) -> WriteSummary | None:
    """Return the summary of the corpus that stands, None where there is no whole one.

    Args:
        place: Where a corpus is to be written.
        arguments: What it is to be written with.
        started: When the write began, by `time.perf_counter`.
        alone: Whether the lock is held: only then a part of a corpus is known to be
            an interrupted write, and not one that is going on.

    Raises:
        FileExistsError: It was made with other arguments.
    """
    paths = [str(path) for path in place.shards().values()]
    if not paths:
        return None
    writes = [as_table(Shard(path).read_metadata().get("write")) for path in paths]
    for path, write in zip(paths, writes, strict=True):
        recorded = as_table(write.get("arguments"))
        if recorded != arguments:
            raise FileExistsError(
                f"{path}: made with other arguments ({_difference(recorded, arguments)}"
                '); use exist="replace" or exist="append", or write elsewhere'
            )
    if place.replacing.exists() or not is_whole(writes):
        if alone:
            _say(f"{place.folder}: an earlier write was interrupted; writing it again")
        return None
    summary = summarize(paths, kept=True, duration_s=time.perf_counter() - started)
    _say(f"{place.folder}: {summary}")
    return summary


def refuse(place: Place) -> None:
    for path in place.shards().values():
        raise FileExistsError(
            f'{path}: a corpus is there; use exist="keep", "replace" or "append"'
        )


def match(place: Place, intake: Intake, info: TokenizerInfo | None) -> None:
    """Make what is appended agree with what stands."""
    for path in itertools.islice(place.shards().values(), 1):
        shard = Shard(path)
        name = shard.layout.head.dtype_name
        if intake.dtype is not None and intake.dtype != name:
            raise ValueError(
                f"{path}: holds {name}, so {intake.dtype} cannot be appended; "
                "leave dtype and vocab_size out, or write another corpus"
            )
        intake.dtype = name
        recorded = shard.read_metadata().get("tokenizer")
        ours = info.to_dict() if info else None
        if recorded != ours:
            raise ValueError(
                f"{path}: was written with another tokenizer, so nothing of this one "
                "can be appended; use the same, or write another corpus"
            )


def tidy(place: Place) -> None:
    """Remove what killed writers left, if nobody is writing and it may be removed."""
    if place.lock.exists() or place.partials():
        with contextlib.suppress(OSError), WriteLock(place.lock).held(shared=False):
            remove_partials(place)


def remove_leftovers(filepath: str | tuple[str, ...]) -> list[Path]:
    """Remove what killed writers left; see `Roxxel.remove_leftovers`."""
    place = place_to_write(filepath)
    found = place.leftovers()
    if found:
        with WriteLock(place.lock).held(shared=False):
            remove_partials(place)
            if place.parts.exists():
                shutil.rmtree(place.parts)
    return found


def remove_partials(place: Place) -> list[Path]:
    """Remove what killed writers left; only for who holds the lock alone."""
    left = list(place.partials().values())
    for path in left:
        path.unlink(missing_ok=True)
    return left


def is_whole(writes: list[dict[str, Any]]) -> bool:
    """Return whether shards, by their `write` records, are whole writes."""
    by_first: dict[object, list[dict[str, Any]]] = {}
    for write in writes:
        by_first.setdefault(write.get("first"), []).append(write)
    for group in by_first.values():
        group.sort(key=lambda write: write.get("position", -1))
        positions = [write.get("position") for write in group]
        last = [bool(write.get("last")) for write in group]
        if positions != list(range(len(group))) or last != [False] * (
            len(group) - 1
        ) + [True]:
            return False
    return True


def _difference(recorded: dict[str, Any], arguments: dict[str, Any]) -> str:
    if not recorded:
        return "not recorded"
    return ", ".join(
        f"{name}={recorded.get(name)!r} there, {value!r} here"
        for name, value in arguments.items()
        if recorded.get(name) != value
    )


def _say(line: str) -> None:
    """Tell the user in one line what was done with an existing corpus."""
    sys.stderr.write(line + "\n")
