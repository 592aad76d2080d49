"""What the arrays of saved steps hold, compared bit by bit; no model is needed.

`roxxel` uses this module too; user programs need not. A step is the path or the URL of
a step, `FOLDER@STEP`, or a folder of checkpoints or of a run, which stands for its
newest step.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.command import Progress
from roxxel_store.screen import short_size

from roxxel_ckpt._arrays.layout import (
    METADATA_FILE,
    SMALL_FILE,
    STATE,
    in_groups,
    leaf_path,
    read_layouts,
)
from roxxel_ckpt._integrity import LocalFiles, problem_of
from roxxel_ckpt._place.description import described_whole, digests_of
from roxxel_ckpt._restore.compare import plan_restore
from roxxel_ckpt.errors import CheckpointDamagedError
from roxxel_ckpt.locations import named_step

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel_ckpt._arrays.layout import LeafSpec
    from roxxel_ckpt._integrity import FileDigest
    from roxxel_ckpt._place.folder import Step

STATE_DIGEST = "state_digest"
"""The key of `extra` with what `Checkpointer.state_digest` returned."""

# A step of a bucket is read in parts of this size, so that it needs little room.
_PART_BYTES = 1 << 30


@dataclass(frozen=True)
class LeafDifference:
    """How a leaf differs between two steps.

    Attributes:
        name: Its name, such as `model/embed/kernel`.
        what: The difference in words.

    Example:
        >>> str(LeafDifference("model/bias", "2 of 8 values differ, by up to 0.5"))
        'model/bias: 2 of 8 values differ, by up to 0.5'
    """

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def different_leaves(a: Step | str, b: Step | str) -> tuple[list[LeafDifference], int]:
    """Compare all leaves of two steps; return the differences, and how many are equal.

    Raises:
        CheckpointNotFoundError: A step does not exist.
        CheckpointDamagedError: A step is damaged.
    """
    steps = [named_step(each) if isinstance(each, str) else each for each in (a, b)]
    both, leaves = zip(*map(described_whole, steps), strict=True)
    report = plan_restore(both[0].step, *leaves, whole=True)
    found = [LeafDifference(name, "only the first has it") for name in report.dropped]
    found += [LeafDifference(name, "only the second has it") for name in report.new]
    found += [
        LeafDifference(name, f"{one} and {other}")
        for name, one, other in report.mismatched
    ]
    with sound(steps[0], "compared") as one, sound(steps[1], "compared") as other:
        values = [*_different_values((one, other), report.restored, leaves[0])]
    return [*found, *values], len(report.restored) - len(values)


def fault_of(step: Step | str, logged: str | None = None) -> str | None:
    """Describe a step's first damage, or how its arrays contradict their digest.

    Each array is read once.

    Args:
        step: The step.
        logged: The digest in the log of the run that has saved the step, if it is
            known.

    Returns:
        A part of a sentence; None for a sound step. If neither step nor log has a
        digest, only damage can be found.
    """
    if isinstance(step, str):
        step = named_step(step)
    try:
        description, leaves = described_whole(step)
        digests = digests_of(step, description)
        recorded = (description.extra or {}).get(STATE_DIGEST)
        if logged is None and recorded is None:
            return damage_of(step)
        with step.opened() as some:
            misfit = _misfit(some, leaves, digests)
        if misfit is not None:
            return misfit
        found = _state_digest(step, leaves, digests)
    except CheckpointDamagedError as error:
        return problem_of(error, step.location)
    if logged not in {None, found}:
        return (
            f"its arrays have the state digest {found}, and the log of the run has "
            f"{logged} at step {description.step}: this run did not save them"
        )
    if recorded not in {None, found}:
        return f"its arrays have the state digest {found} and not {recorded}"
    return None


def _state_digest(
    step: Step, leaves: Mapping[str, LeafSpec], digests: Mapping[str, FileDigest]
) -> str:
    """Return the digest of the arrays of a step, and check all files on the way.

    Raises:
        CheckpointDamagedError: A file is damaged; the message has no remedy.
    """
    from roxxel_ckpt._arrays.orbax import read_as_numpy
    from roxxel_ckpt._arrays.state_digest import state_digest

    left = dict(digests)
    # Files of no single array, which `read_as_numpy` needs for every group.
    described = [name for name in digests if name in {METADATA_FILE, SMALL_FILE}]

    def check(files: LocalFiles, names: Iterable[str]) -> None:
        for damage in files.damages({name: digests[name] for name in names}).values():
            raise CheckpointDamagedError(f"{step.location}: {damage}")

    def stored() -> Iterator[tuple[str, LeafSpec, Any]]:
        sizes = {name: spec.num_bytes or 0 for name, spec in leaves.items()}
        num_bytes = sum(sizes.values())
        num_read = 0
        with Progress(f"reading {step.location}, {short_size(num_bytes)}") as progress:
            for group in in_groups(sizes, _PART_BYTES):
                folders = tuple(f"{STATE}/{leaf_path(name)}/" for name in group)
                names = [name for name in left if name.startswith(folders)]
                for name in names:
                    del left[name]
                with step.opened() as some:
                    # Just before they are hashed, so that a disk reads them once.
                    check(some, [*names, *described])
                    for name, array in read_as_numpy(some.directory, group, leaves):
                        yield name, leaves[name], array
                        num_read += sizes[name]
                        progress(num_read, num_bytes)

    found = state_digest(stored())
    unread = {name: digest.num_bytes for name, digest in left.items()}
    for group in in_groups(unread, _PART_BYTES):
        with step.opened() as some:
            check(some, group)
    return found


def _different_values(
    directories: tuple[Path, Path],
    names: Sequence[str],
    leaves: Mapping[str, LeafSpec],
) -> Iterator[LeafDifference]:
    from roxxel_ckpt._arrays.orbax import read_as_numpy

    def bits(values: Any) -> Any:
        return np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, -1)

    readers = (read_as_numpy(path, names, leaves) for path in directories)
    for (name, a), (_, b) in zip(*readers, strict=True):
        if a.tobytes() == b.tobytes():
            continue
        differ = (bits(a) != bits(b)).any(axis=1)
        line = f"{differ.sum()} of {a.size} values differ"
        if a.dtype.kind in "fc" or a.dtype.name.startswith(("bfloat", "float8")):
            wide = "complex128" if a.dtype.kind == "c" else "float64"
            pair = [x.astype(wide).reshape(-1)[differ] for x in (a, b)]
            with np.errstate(invalid="ignore"):
                line += f", by up to {abs(pair[0] - pair[1]).max():.3g}"
        yield LeafDifference(name, line)


def damage_of(step: Step, files: LocalFiles | None = None) -> str | None:
    """Describe the first damage in any file of a step; None if the step is sound.

    With `files`, all files of the step are in their directory afterwards. Without, a
    step in a bucket needs room for a small part of its files at a time.
    """
    try:
        description, leaves = described_whole(step)
        digests = digests_of(step, description)
    except CheckpointDamagedError as error:
        return problem_of(error, step.location)
    sizes = {name: digest.num_bytes for name, digest in digests.items()}
    num_bytes = sum(sizes.values())
    num_read = 0
    with Progress(f"reading {step.location}, {short_size(num_bytes)}") as progress:
        groups = in_groups(sizes, num_bytes if files is not None else _PART_BYTES)
        for group in groups:
            with contextlib.nullcontext(files) if files else step.opened() as some:
                damages = some.damages({name: digests[name] for name in group})
            if damages:
                return next(iter(damages.values()))
            num_read += sum(sizes[name] for name in group)
            progress(num_read, num_bytes)
    with contextlib.nullcontext(files) if files else step.opened() as some:
        return _misfit(some, leaves, digests)


def _misfit(
    files: LocalFiles,
    leaves: Mapping[str, LeafSpec],
    digests: Mapping[str, FileDigest],
) -> str | None:
    """Describe the first array whose sound files contradict the description."""
    saved = {name: spec for name, spec in leaves.items() if spec.is_stored}
    try:
        read_layouts(files, saved, digests)
    except CheckpointDamagedError as error:
        return problem_of(error, files.directory)
    return None


@contextlib.contextmanager
def sound(step: Step, done: str) -> Generator[Path]:
    """Yield a directory with all files of a step; raise if any file is damaged."""
    with step.opened() as files:
        damage = damage_of(step, files)
        if damage is not None:
            raise CheckpointDamagedError(
                f"{step.location}: cannot be {done} because {damage}; name another step"
            )
        yield files.directory
