"""Verify every shard, every column and the kept tokenizer of a corpus."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_format._read.blocks import damage_of_shard
from roxxel_format._read.columns import damage_of_column
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_format._read.contents import Contents


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        num_shards: Number of shards checked.
        num_bytes: Size of these shards in bytes.
        errors: An error for each damaged block, section, column file or kept tokenizer;
            errors of shards come first, in order.

    Example:
        >>> written = Roxxel("whole.rox").write([[5, 6, 7]], vocab_size=100)
        >>> report = Roxxel("whole.rox").verify()
        >>> report.ok, report.num_shards
        (True, 1)
    """

    num_shards: int
    num_bytes: int
    errors: tuple[ShardError, ...]

    @property
    def ok(self) -> bool:
        """Whether no errors were found."""
        return not self.errors

    def raise_if_damaged(self) -> None:
        """Raise the first error, if any."""
        if self.errors:
            raise self.errors[0]


def verify_corpus(
    contents: Contents,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check all files of a corpus; see `Roxxel.verify`."""
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
    workers = min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, "roxxel-verify") as pool:
        for number in range(len(contents.paths)):
            try:
                # Opening compares the shard with its manifest entry.
                shard = contents.open_shard(number)
                errors.extend(damage_of_shard(shard, pool.map, advance))
            except ShardError as error:
                # A traceback would keep the file open.
                errors.append(error.with_traceback(None))
    for name in contents.columns:
        errors.extend(damage_of_column(name, contents))
    errors.extend(_damage_of_tokenizer(contents))
    return VerifyReport(len(contents.paths), total, tuple(errors))


def _damage_of_tokenizer(contents: Contents) -> list[ShardError]:
    try:
        _ = contents.kept_tokenizer()
    except (FileNotFoundError, ShardError) as error:
        return [ShardError(str(error))]
    return []
