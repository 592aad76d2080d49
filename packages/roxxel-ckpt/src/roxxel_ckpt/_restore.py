"""Choose the checkpoint to restore, verify it, and read it into live objects.

Every process plans which arrays it needs, verifies the files with these arrays, and
reads them. The processes agree on each candidate: damage that one process finds makes
all of them pass over the checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from typing import TYPE_CHECKING, Any, Literal

import jax

from roxxel_ckpt import _orbax
from roxxel_ckpt._compare import RestorePlan, check_restorable, plan_restore
from roxxel_ckpt._description import (
    FORMAT,
    is_version_1,
    read_description,
    read_digests,
    read_leaves,
)
from roxxel_ckpt._folder import METADATA_FILE, STATE, Folder
from roxxel_ckpt._integrity import FileDigest, Verifier
from roxxel_ckpt._leaves import (
    LiveState,
    from_stored,
    is_read_as_numpy,
    stored_template,
)
from roxxel_ckpt._processes import (
    Channel,
    is_first_process,
    process_count,
    process_index,
)
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointStateLostError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from roxxel_ckpt._compare import RestoreReport
    from roxxel_ckpt._description import Description

_logger = logging.getLogger("roxxel_ckpt")
_Targets = dict[str, jax.ShapeDtypeStruct | None]


@dataclasses.dataclass(frozen=True)
class Options:
    """How a checkpoint is fitted to the live objects; see `Checkpointer.restore`."""

    strict: bool = False
    on_mismatch: Literal["error", "keep"] = "error"
    rename: Mapping[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A verified checkpoint, and what this process reads from it.

    Attributes:
        directory: Directory of the step.
        description: What the checkpoint says about itself.
        plan: Which stored leaf goes where.
        targets: What to read each stored leaf into.
    """

    directory: Path
    description: Description
    plan: RestorePlan
    targets: _Targets


class Restorer:
    """Chooses, verifies and reads checkpoints of a folder.

    Args:
        folder: The folder of the checkpoints.
        channel: Of the calls that all processes make.
        timeout_s: Longest wait for the other processes.
    """

    def __init__(self, folder: Folder, channel: Channel, timeout_s: float) -> None:
        self._folder, self._channel, self._timeout_s = folder, channel, timeout_s
        self._verifier = Verifier()

    def choose(
        self,
        live: LiveState,
        steps: list[int],
        step: int | None,
        options: Options | None,
    ) -> Candidate | None:
        """Return the newest sound checkpoint, the same on all processes.

        Args:
            live: The live objects, whose shardings decide which files are verified.
            steps: Steps that have a directory, oldest first.
            step: The requested step; None for the newest sound checkpoint.
            options: How the checkpoint is fitted to the live objects; None if it need
                not fit.

        Raises:
            CheckpointDamagedError: The requested step is damaged, or all steps are.
            CheckpointMismatchError: The checkpoint does not fit the live objects.
            CheckpointNotFoundError: The requested step does not exist.
        """
        if step is not None and step not in steps:
            raise not_found(self._folder, step)
        for number in [step] if step is not None else reversed(steps):
            candidate, problem = self._verified(live, number, options)
            if problem is None:
                return candidate
            directory = self._folder.step_path(number)
            if step is not None:
                raise CheckpointDamagedError(
                    f"{directory}: cannot be used, {problem}; restore() without a step "
                    "uses the newest sound checkpoint"
                )
            if is_first_process():
                _logger.warning(
                    "%s: cannot be used, %s; trying an older checkpoint",
                    directory,
                    problem,
                )
        if steps:
            raise CheckpointDamagedError(
                f"{self._folder}: none of its {len(steps)} steps can be used; "
                "give another folder to start anew, or repair this one"
            )
        return None

    def forget(self) -> None:
        """Verify every file again before the next restore."""
        self._verifier.forget()

    def read(
        self, live: LiveState, candidate: Candidate, *, release: bool
    ) -> RestoreReport:
        """Read a verified checkpoint into the live objects, in their shardings.

        Args:
            live: The live objects; they change only after every process has read.
            candidate: From `choose`, for the same live objects.
            release: Delete the live arrays before reading.

        Raises:
            CheckpointError: A process cannot read; the live objects are unchanged.
            CheckpointStateLostError: The same, after the live arrays were deleted.
        """
        source = candidate.plan.source
        names = [name for name in source if live.specs[name].is_stored]
        values: dict[str, Any] = {}

        def read() -> None:
            if release:
                live.release(names)
            stored = _orbax.read_arrays(candidate.directory / STATE, candidate.targets)
            for name in names:
                # Dropping each stored array here keeps the peak at one state.
                array = stored.pop(source[name])
                values[name] = from_stored(array, live.leaves[name])

        try:
            self._channel.agree(
                f"read step {candidate.description.step}",
                read,
                lambda _: None,
                self._timeout_s,
            )
        except Exception as error:
            if release:
                raise CheckpointStateLostError(
                    f"{candidate.directory}: the arrays cannot be read "
                    f"({brief(error)}) and the live arrays were deleted before; make a "
                    "new model and optimizer and restore again"
                ) from error
            raise CheckpointError(
                f"{candidate.directory}: the arrays cannot be read ({brief(error)}); "
                "restore another step"
            ) from error
        live.update(values)
        return candidate.plan.report

    def _verified(
        self, live: LiveState, step: int, options: Options | None
    ) -> tuple[Candidate | None, str | None]:
        """Plan and verify a step; return it, or why no process may use it."""
        found: list[Candidate] = []

        def verify() -> str | None:
            try:
                found.append(self._plan(live, step, options))
                return self._damage(found[0])
            except CheckpointMismatchError:
                raise
            except CheckpointDamagedError as error:
                text = str(error).removeprefix(f"{self._folder.step_path(step)}: ")
                return text.removesuffix("; restore another step")
            except Exception as error:  # noqa: BLE001 - every reason counts as damage
                return f"it cannot be read ({brief(error)})"

        problem: str | None = self._channel.agree(
            f"verify step {step}", verify, _first_problem, self._timeout_s
        )
        return (found[0] if problem is None else None), problem

    def _plan(self, live: LiveState, step: int, options: Options | None) -> Candidate:
        directory = self._folder.step_path(step)
        if not self._folder.is_ours(step):
            raise CheckpointDamagedError(
                f"{directory}: it is not a checkpoint of roxxel-ckpt"
            )
        description = read_description(directory)
        if description.format > FORMAT:
            raise CheckpointDamagedError(
                f"{directory}: it has format {description.format} and this roxxel-ckpt "
                f"reads up to {FORMAT}, so install a newer one"
            )
        rename = options and options.rename
        plan = plan_restore(step, read_leaves(directory), live.specs, rename)
        if options is not None:
            check_restorable(
                plan.report,
                str(directory),
                strict=options.strict,
                on_mismatch=options.on_mismatch,
            )
        targets: _Targets = {
            stored: None if is_read_as_numpy(leaf) else stored_template(leaf)
            for stored, leaf in (
                (plan.source[name], live.leaves[name])
                for name in plan.source
                if live.specs[name].is_stored
            )
        }
        return Candidate(directory, description, plan, targets)

    def _damage(self, candidate: Candidate) -> str | None:
        """Return the first damage in the files that this process reads."""
        directory = candidate.directory
        digests = read_digests(directory, candidate.description)
        if is_version_1(directory):
            # The files of OCDBT do not show which arrays they hold, so the processes
            # share the verification of all files.
            mine = list(digests)[process_index() :: process_count()]
            return self._find(directory, digests, mine)
        layouts = {name: f"{STATE}/{name}/zarr.json" for name in candidate.targets}
        damage = self._find(directory, digests, [METADATA_FILE, *layouts.values()])
        if damage is not None:
            return damage
        chunks = (
            f"{STATE}/{name}/{chunk}"
            for name, target in candidate.targets.items()
            for chunk in _chunks(directory / layouts[name], target)
        )
        # A chunk without a file holds the fill value; its absence is recorded.
        return self._find(directory, digests, [c for c in chunks if c in digests])

    def _find(
        self, directory: Path, digests: Mapping[str, FileDigest], names: list[str]
    ) -> str | None:
        missing = [name for name in names if name not in digests]
        if missing:
            return f"{missing[0]} has no digest"
        return self._verifier.find_damage(directory, {n: digests[n] for n in names})


def not_found(folder: Folder, step: int) -> CheckpointNotFoundError:
    """Return the error for a step that does not exist; it names the steps that do."""
    return CheckpointNotFoundError(
        f"{folder}: has no step {step}; it holds {listed(folder.steps())}"
    )


def listed(steps: list[int]) -> str:
    """Return steps as words of a sentence, the first ten of them by number."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def _first_problem(problems: list[str | None]) -> str | None:
    found = ((p, text) for p, text in enumerate(problems) if text is not None)
    process, text = next(found, (0, None))
    if text is None or len(problems) == 1:
        return text
    return f"{text} (found by process {process})"


def _chunks(layout: Path, target: jax.ShapeDtypeStruct | None) -> set[str]:
    """Return the chunks of a zarr array that hold the shards of this process.

    Args:
        layout: The verified `zarr.json` of the array.
        target: Shape and sharding to read into; None for the whole array.
    """
    array = json.loads(layout.read_text())
    shape, sizes = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    parts: list[Any] = [(slice(None),) * len(shape)]
    if target is not None and target.sharding is not None:
        indices = target.sharding.addressable_devices_indices_map(tuple(shape))
        parts = list(indices.values())
    blocks = {
        tuple(
            (start // size, -(-stop // size))
            for (start, stop, _), size in zip(
                (cut.indices(length) for cut, length in zip(part, shape, strict=True)),
                sizes,
                strict=True,
            )
        )
        for part in parts
    }
    return {
        "/".join(("c", *map(str, chunk)))
        for block in blocks
        for chunk in itertools.product(*(range(*bounds) for bounds in block))
    }
