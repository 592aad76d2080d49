"""Compare the batches on which a run trained with its corpora as they are now.

The metrics rows of a run hold a digest of the batches that the devices received. The
audit reads the same batches again and compares the digests, from one row to the next.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum.digest import add_step, batch_digest
from roxxel_format import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from roxxel_curriculum import Sampler


_MAX_LISTED = 3
"""Maximum number of steps, and of errors, in the text of a difference."""


@dataclass(frozen=True)
class Difference:
    """A range of steps whose batches differ from those on which the run trained.

    Attributes:
        start: First step of the range.
        stop: One past the last step.
        damage: Steps of the range that read a damaged block, each with the error. Empty
            if the sampler verifies no blocks, or if the checksums agree with the
            changed tokens.

    Example:
        >>> str(Difference(10, 20, {12: "web_00000.rox: block 3 is damaged"}))
        'steps 10 to 19 differ; step 12: web_00000.rox: block 3 is damaged'
        >>> str(Difference(10, 20, dict.fromkeys([12, 15], "web_00000.rox: damaged")))
        'steps 10 to 19 differ; steps 12, 15: web_00000.rox: damaged'
    """

    start: int
    stop: int
    damage: Mapping[int, str]

    def __str__(self) -> str:
        """Return the difference as one line."""
        steps = f"step {self.start} differs"
        if self.stop > self.start + 1:
            steps = f"steps {self.start} to {self.stop - 1} differ"
        of_error: dict[str, list[int]] = {}
        for step, error in self.damage.items():
            of_error.setdefault(error, []).append(step)
        found = [
            f"step{'s' if len(each) > 1 else ''} {_listed(each)}: {error}"
            for error, each in list(of_error.items())[:_MAX_LISTED]
        ]
        more = len(of_error) - len(found)
        found += [f"{more} more damaged blocks"] if more > 0 else []
        return "; ".join([steps, *found])


def _listed(steps: Sequence[int]) -> str:
    """Return a few steps as text, and the number of the others."""
    first = ", ".join(map(str, steps[:_MAX_LISTED]))
    more = len(steps) - _MAX_LISTED
    return f"{first} and {more} more" if more > 0 else first


@dataclass(frozen=True)
class Audit:
    """The result of `audit`.

    Attributes:
        num_steps: Steps whose batches were read again.
        differences: Ranges of steps that differ, in order.

    Example:
        >>> Audit(7, ()).is_sound
        True
    """

    num_steps: int
    differences: tuple[Difference, ...]

    @property
    def is_sound(self) -> bool:
        """Whether all batches that were read again agree with the log."""
        return not self.differences


def audit(
    sampler: Sampler,
    rows: Iterable[Mapping[str, Any]],
    *,
    steps: range | None = None,
    sample: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Audit:
    """Read batches of a run again, and compare them with the digests of its log.

    Args:
        sampler: The sampler of the run, such as `Trainer.sampler`, or
            `Curriculum.sampler(state=data_state(...))`. With `check="blocks"` the audit
            also names the steps that read damaged blocks.
        rows: The rows of `metrics.jsonl`.
        steps: Compare only intervals between rows that contain at least one of these
            steps.
        sample: Compare only this many intervals, drawn by a fixed seed.
        workers: Threads that read batches; by default one for each processor.
        progress: Called after each step with two numbers: the steps read so far, and
            the steps to read in total.

    Returns:
        The number of steps read again, and the ranges of steps that differ. A range is
        the interval between two rows, so only a run with `log_every=1` has ranges of
        single steps.

    Raises:
        ValueError: There are no rows, or the rows hold no digest of these steps.
        IndexError: A row names a step outside the run of the sampler.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(999), [Phase(2, 2, 8)]).sampler(0)
        >>> audit(sampler, [{"step": 2, "digest": "0" * 16}]).differences
        (Difference(start=0, stop=2, damage={}),)
    """
    digests = _digests(rows)
    intervals = [
        (first, last, (after - before) % (1 << 64))
        for (first, before), (last, after) in pairwise(digests)
        if steps is None or (first < steps.stop and steps.start < last)
    ]
    if not intervals:
        raise ValueError(_why_nothing(digests, steps))
    if sample is not None and sample < len(intervals):
        intervals = sorted(Random(0).sample(intervals, sample))
    total = sum(last - first for first, last, _ in intervals)
    done = 0
    differences: list[Difference] = []
    with ThreadPoolExecutor(workers or os.cpu_count()) as threads:
        for first, last, fed in intervals:
            digest, damage = 0, dict[int, str]()
            read = threads.map(lambda step: _read(sampler, step), range(first, last))
            for step, found in zip(range(first, last), read, strict=True):
                if isinstance(found, str):
                    damage[step] = found
                else:
                    digest = add_step(digest, step, found)
                done += 1
                if progress is not None:
                    progress(done, total)
            if damage or digest != fed:
                differences.append(Difference(first, last, damage))
    return Audit(total, tuple(differences))


def _why_nothing(digests: Sequence[tuple[int, int]], steps: range | None) -> str:
    """Return the reason why no interval can be compared."""
    if steps is not None and len(digests) > 1:
        return (
            f"the metrics rows hold no digest of the steps [{steps.start}, "
            f"{steps.stop}); choose steps in [{digests[0][0]}, {digests[-1][0]})"
        )
    return (
        "the log holds no digest to compare; verify the data after the run's first row "
        "of metrics, and train with the field 'tokens'"
    )


def _digests(rows: Iterable[Mapping[str, Any]]) -> Sequence[tuple[int, int]]:
    """Return pairs `(step, digest)` in order: one for each row with a digest.

    The first pair is `(0, 0)`, if there are rows with a digest.
    """
    found = {
        row["step"]: int(row["digest"], 16)
        for row in rows
        if isinstance(row.get("digest"), str)
    }
    return sorted(({0: 0} | found).items()) if found else []


def _read(sampler: Sampler, step: int) -> int | str:
    """Return the digest of a batch, or what is damaged, without the remedy."""
    try:
        batch: Any = sampler.batch(step)
    except ChecksumError as error:
        # Each remedy names its own tokens; those of an audit are the same for all.
        return error.reason
    except ShardError as error:
        return str(error)
    is_dict = isinstance(batch, dict)
    return batch_digest(cast("Any", batch)["tokens"] if is_dict else batch)
