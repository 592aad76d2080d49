"""Check every block of every shard, many at a time.

zlib releases Python's lock only for more than 5 KiB, so with one block per call one
thread would run at a time. Instead, one call sums a run of blocks, and the result is
compared with the combination of their stored checksums. Only if these differ is each
block of the run checked.
"""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from roxxel_format._read.columns import damage_of_column
from roxxel_format._spec.crc import combined_crc
from roxxel_format._spec.layout import digests
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from roxxel_format._read.contents import Contents
    from roxxel_format._read.shard_map import ShardMap

_RUN_SIZE = 1 << 22


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        num_shards: Number of shards checked.
        num_bytes: Total size of these shards.
        errors: One for each damaged block or section, in the order of the corpus.
    """

    num_shards: int
    num_bytes: int
    errors: tuple[ShardError, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.errors

    def raise_if_damaged(self) -> None:
        """Raise the first error, if there is one."""
        if self.errors:
            raise self.errors[0]


def verify_corpus(
    contents: Contents,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check every section of every shard, and every column; see `Roxxel.verify`."""
    # Imported here because it loads logging, which only verification needs.
    from concurrent.futures import ThreadPoolExecutor

    total = sum(contents.shards.num_bytes)
    done = 0
    lock = threading.Lock()

    def advance(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            if progress is not None:
                progress(done, total)

    errors: list[ShardError] = []
    workers = threads or min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, "roxxel-verify") as pool:
        for number in range(len(contents.paths)):
            try:
                # Opening compares the shard with its manifest entry.
                shard = contents.open_shard(number)
                errors.extend(_verify_shard(shard, pool, advance))
            except ShardError as error:
                errors.append(error)
    for name in contents.columns:
        errors.extend(damage_of_column(name, contents))
    return VerifyReport(len(contents.paths), total, tuple(errors))


def _verify_shard(
    shard: ShardMap, pool: ThreadPoolExecutor, advance: Callable[[int], None]
) -> list[ShardError]:
    """Return the errors of a shard; raise one that makes other checks impossible."""
    layout = shard.layout
    _ = shard.checksums
    step = max(1, _RUN_SIZE // layout.head.block_size)
    starts = range(0, layout.num_token_blocks, step)
    stops = [min(first + step, layout.num_token_blocks) for first in starts]
    errors: list[ShardError] = []
    seen: list[tuple[int, int]] = []
    for damage, values in pool.map(partial(_verify_run, shard, advance), starts, stops):
        errors.extend(damage)
        seen.append(values)
    for section in (lambda: shard.document_ends, shard.metadata):
        try:
            section()
        except ShardError as error:
            errors.append(error)
    advance(layout.sections.stop - layout.num_token_blocks * layout.head.block_size)
    if not errors:
        _check_against_foot(shard, seen)
    return errors


def _verify_run(
    shard: ShardMap, advance: Callable[[int], None], first: int, last: int
) -> tuple[list[ShardError], tuple[int, int]]:
    """Check blocks `[first, last)`; return the damage and the range of the tokens."""
    layout = shard.layout
    size = layout.head.block_size
    data = shard.read_blocks(first, last)
    errors: list[ShardError] = []
    if zlib.crc32(data) != combined_crc(shard.checksums[first:last], size):
        view = memoryview(data)
        for block in range(first, last):
            at = (block - first) * size
            try:
                shard.check_block(block, view[at : at + size])
            except ShardError as error:
                errors.append(error)
    values = 0, 0
    if layout.value_range is not None:
        per_block = size // layout.head.item_size
        count = min(last * per_block, layout.num_tokens) - first * per_block
        tokens = np.frombuffer(data, layout.dtype, count)
        values = int(tokens.min()), int(tokens.max())
    advance(len(data))
    return errors, values


def _check_against_foot(shard: ShardMap, seen: list[tuple[int, int]]) -> None:
    """Compare the sections with the digests and the token range of the foot.

    Raises:
        ShardError: The digests or the range in the foot differ.
    """
    layout, at = shard.layout, shard.layout.sections
    found = digests(
        layout,
        layout.head.pack(),
        [shard.section(at.documents, at.checksums)],
        shard.section(at.checksums, at.metadata),
        bytes(shard.section(at.metadata, at.foot)),
    )
    low = min((each[0] for each in seen), default=0)
    high = max((each[1] for each in seen), default=0)
    if found != (layout.content_digest, layout.digest) or (low, high) != (
        layout.min_value,
        layout.max_value,
    ):
        raise ShardError(
            f"{shard.path}: its sections do not match the digests in its foot; "
            "fetch or write this shard again"
        )
