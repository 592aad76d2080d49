"""Choose the checkpoint to restore, verify it, and read it as a live pytree.

Every process plans which arrays it needs, then verifies and reads the files that hold
these arrays. If one process finds damage, all processes skip the checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import operator
from typing import TYPE_CHECKING, Any

import jax

from roxxel_ckpt._arrays.layout import in_groups, read_layouts
from roxxel_ckpt._arrays.leaves import StateTree, from_stored, target_of
from roxxel_ckpt._integrity import problem_of
from roxxel_ckpt._place.description import (
    COMMIT_FILE,
    checked_step,
    described_whole,
    digests_of,
    not_found,
)
from roxxel_ckpt._restore.compare import (
    Options,
    check_form,
    check_keeps_learned,
    check_loadable,
    check_restorable,
    plan_restore,
)
from roxxel_ckpt.coordination import (
    Channel,
    process_count,
    process_index,
)
from roxxel_ckpt.devices import bytes_by_device
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointStateLostError,
    CheckpointUnreadableError,
    brief,
)
from roxxel_ckpt.locations import check_is_the_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import SupportsIndex

    from roxxel_ckpt._arrays.layout import LeafSpec
    from roxxel_ckpt._integrity import LocalFiles
    from roxxel_ckpt._place.description import Description
    from roxxel_ckpt._place.folder import Folder, Step
    from roxxel_ckpt._restore.compare import RestoreReport

_logger = logging.getLogger("roxxel_ckpt")
_Targets = dict[str, jax.ShapeDtypeStruct | None]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A verified checkpoint, and how to read its leaves.

    `source` and `targets` have an entry for each leaf that the restore reads. `source`
    maps the live name of a leaf to its name in the checkpoint. `targets` maps the name
    in the checkpoint to shape, dtype and sharding, or to None to read as numpy. `saved`
    has the leaves of the checkpoint. `skipped` has newer steps that are damaged. `live`
    is the tree to read into. Without `targets`, all files are verified and no leaf is
    read.
    """

    live: StateTree
    step: Step
    files: LocalFiles
    description: Description
    report: RestoreReport
    source: Mapping[str, str]
    targets: _Targets | None
    saved: Mapping[str, LeafSpec]
    skipped: tuple[Step, ...] = ()

    def check_fits(self, options: Options) -> None:
        """Raise a CheckpointMismatchError if the options forbid this candidate."""
        location, report = self.step.location, self.report
        check_form(location, self.saved, is_tree=options.is_load)
        if options.is_load:
            blank = self.live.without_values(report.new)
            check_loadable(report, location, blank, strict=options.strict)
        else:
            check_restorable(report, location, options)

    def check_continues(self) -> None:
        """Raise a CheckpointMismatchError if the live state cannot continue here."""
        self.check_fits(Options())
        check_keeps_learned(self.report, self.step.location, self.saved)


class Restorer:
    """Chooses, verifies and reads checkpoints of a folder."""

    def __init__(self, folder: Folder, channel: Channel, timeout_s: float) -> None:
        self._folder = folder
        self._channel, self._timeout_s = channel, timeout_s
        # What `peek` has verified and perhaps fetched, the next `restore` uses.
        self._opened: dict[Step, LocalFiles] = {}

    def choose(
        self,
        call: str,
        step: SupportsIndex | None,
        find_live: Callable[[], StateTree | None],
        options: Options | None,
        wait: Callable[[], None],
    ) -> Candidate | None:
        """Choose `step`, or else the newest sound checkpoint; None if none exists.

        The choice is the same on all processes. `call` names the method in errors.
        `wait` waits for the save in flight. `find_live` returns the tree to read into,
        whose shardings decide which files each process verifies. Without `options`, the
        checkpoint need not fit the tree.
        """

        def list_steps(_: list[None]) -> list[int]:
            return list(self._folder.steps())

        steps = self._channel.agree(call, wait, list_steps, self._timeout_s)
        live = find_live()
        wanted = None if step is None else checked_step(step)
        try:
            chosen = self._choose_from(steps, live, wanted, options)
        except CheckpointDamagedError:
            if wanted is not None:
                raise
            # A program that saves here may have deleted the steps listed above.
            now = self._channel.agree(
                f"{call} again", lambda: None, list_steps, self._timeout_s
            )
            if now == steps:
                raise
            chosen = self._choose_from(now, live, wanted, options)
        if chosen is None:
            check_is_the_folder(self._folder)
        return chosen

    def read(self, candidate: Candidate, *, release: bool = False) -> dict[str, Any]:
        """Read the checkpoint that `choose` returned; return the roots of its tree.

        Every process has read its arrays when this method returns. `release` deletes
        the live arrays before reading; a failure then loses their values and raises
        CheckpointStateLostError.
        """
        files = candidate.files
        files.forget()  # The next restore verifies every file again.
        live, values = candidate.live, dict[str, Any]()
        from roxxel_ckpt._arrays import orbax

        def read() -> None:
            if release:
                live.release(candidate.source)
            targets = candidate.targets or {}
            names = {source: name for name, source in candidate.source.items()}
            sizes = _sizes_here(candidate.saved, targets)
            # Small ones first: those that share a file come in few calls.
            by_size = dict(sorted(sizes.items(), key=operator.itemgetter(1)))
            # A hundredth of a large state is several arrays, read side by side.
            at_once = max(orbax.BYTES_AT_ONCE, sum(sizes.values()) // 100)
            for group in in_groups(by_size, at_once):
                wanted = {source: targets[source] for source in group}
                stored = orbax.read_arrays(files.directory, wanted)
                for source in group:
                    name = names[source]
                    leaf = live.leaves[name]
                    # `pop` frees each stored array early.
                    values[name] = from_stored(name, stored.pop(source), leaf)

        try:
            self._channel.agree(
                f"read step {candidate.description.step}",
                read,
                lambda _: None,
                self._timeout_s,
            )
        except Exception as error:
            if isinstance(error, CheckpointMismatchError) and not release:
                raise
            location = candidate.step.location
            if release:
                raise CheckpointStateLostError(
                    f"{location}: the arrays cannot be read "
                    f"({brief(error)}) after the live arrays were deleted, so the "
                    "state in memory is lost, and the checkpoint is unchanged; remove "
                    "the cause and restore again"
                ) from error
            raise CheckpointError(
                f"{location}: the arrays cannot be read ({brief(error)}); "
                "restore another step"
            ) from error
        self._close(candidate.step, keep=True)
        for step in list(self._opened):
            self._close(step, keep=False)
        if process_index() == 0 and not candidate.report.is_exact:
            _logger.warning("%s: %s", self._folder, candidate.report)
        return live.with_values(values)

    def _choose_from(
        self,
        steps: list[int],
        live: StateTree | None,
        step: int | None,
        options: Options | None,
    ) -> Candidate | None:
        """Choose a checkpoint; `steps` are sorted, oldest first.

        A damaged `step` raises CheckpointDamagedError. The shardings of `live` decide
        which files each process verifies.
        """
        if step is not None and step not in steps:
            raise not_found(self._folder, step)
        skipped: list[tuple[str, str]] = []
        damaged: list[Step] = []
        for number in [step] if step is not None else reversed(steps):
            candidate, found, problem = self._verified(live, number, options)
            if candidate is not None:
                return dataclasses.replace(candidate, skipped=tuple(damaged))
            location = found[0].location if found else f"{self._folder}/{number}"
            damaged += found
            if step is not None:
                raise CheckpointDamagedError(
                    f"{location}: cannot be used because {problem}; restore() without "
                    "a step uses the newest sound checkpoint"
                )
            skipped.append((location, problem))
            # `peek` logs nothing here, because the `restore` that follows logs the
            # damage. The trainer calls `peek` before it opens the log of the run.
            if options is not None:
                _log_damage(skipped[-1:])
        if steps:
            if options is None:
                _log_damage(skipped)
            raise CheckpointDamagedError(
                f"{self._folder}: none of its {len(steps)} steps can be used, "
                f"the newest because {skipped[0][1]}; give another folder to start "
                "anew, or repair this one"
            )
        return None

    def _verified(
        self, live: StateTree | None, number: int, options: Options | None
    ) -> tuple[Candidate | None, list[Step], str]:
        """Plan and verify a step; return the candidate, the step, and the damage."""
        found: list[Candidate] = []
        steps: list[Step] = []

        def verify() -> str | None:
            place = f"{self._folder}/{number}"
            files = None
            try:
                steps.extend(self._folder.steps([number]).values())
                if not steps:
                    return f"{COMMIT_FILE} is missing"
                place = steps[0].location
                files = self._files_of(steps[0])
                found.append(self._plan(steps[0], files, live, options))
                self._check(found[0])
            except CheckpointDamagedError as error:
                return problem_of(error, place, files and files.directory)
            except CheckpointError:
                # A bucket that does not answer, or a full local disk, says nothing
                # about the checkpoint.
                raise
            except (FileNotFoundError, NotADirectoryError) as error:
                return f"it cannot be read ({brief(error)})"
            except Exception as error:
                raise CheckpointUnreadableError.because(place, error) from error
            return None

        problem: str | None = self._channel.agree(
            f"verify step {number}",
            lambda: (verify(), _identity(found)),
            _first_problem,
            self._timeout_s,
        )
        if problem is None:
            return found[0], steps, ""
        for step in steps:
            self._close(step, keep=False)
        return None, steps, problem

    def _files_of(self, step: Step) -> LocalFiles:
        if step not in self._opened:
            self._opened[step] = step.opened()
        return self._opened[step]

    def _close(self, step: Step, *, keep: bool) -> None:
        files = self._opened.pop(step, None)
        if files is not None:
            files.close(keep=keep)

    def _plan(
        self,
        step: Step,
        files: LocalFiles,
        live: StateTree | None,
        options: Options | None,
    ) -> Candidate:
        if step.state == "foreign":
            raise CheckpointDamagedError(
                f"{step.location}: it is not a checkpoint of roxxel-ckpt; read one of "
                "another program as that program does, and save it here"
            )
        description, saved = described_whole(step)
        specs = {} if live is None else live.specs
        report = plan_restore(step.number, saved, specs, options and options.rename)
        old_name = {new: old for old, new in report.renamed.items()}
        source = {
            name: old_name.get(name, name)
            for name in report.restored
            if specs[name].is_stored
        }
        targets: _Targets | None = None
        if live is not None:
            # A number of Python, read into an array, is converted after reading.
            targets = {
                stored: target_of(live.leaves[name])
                if saved[stored] == specs[name]
                else None
                for name, stored in source.items()
            }
        tree = live or StateTree({})
        found = Candidate(
            tree, step, files, description, report, source, targets, saved
        )
        if live is not None and options is not None:
            found.check_fits(options)
        return found

    def _check(self, candidate: Candidate) -> None:
        """Raise an error if a file that this process reads is damaged."""
        files = candidate.files
        digests = digests_of(candidate.step, candidate.description)
        if candidate.targets is None:
            # Without a tree, all files count; they are shared among the processes.
            mine = list(digests)[process_index() :: process_count()]
            files.check(digests, mine)
            return
        specs = {name: candidate.saved[name] for name in candidate.targets}
        layouts = read_layouts(files, specs, digests)
        parts = {
            name: _parts(layouts[name].shape, target)
            for name, target in candidate.targets.items()
        }
        overlapping = [layouts[name].overlapping(parts[name]) for name in parts]
        files.check(digests, dict.fromkeys(itertools.chain(*overlapping)))


def _log_damage(skipped: list[tuple[str, str]]) -> None:
    if process_index() == 0:
        for location, problem in skipped:
            _logger.warning(
                "%s: cannot be used because %s; trying an older checkpoint",
                location,
                problem,
            )


def _identity(found: list[Candidate]) -> list[float]:
    """Return numbers that differ between two saves of one step."""
    return [
        number
        for candidate in found
        for number in (candidate.description.saved_at, *candidate.description.digests)
    ]


def _first_problem(reports: list[tuple[str | None, list[float]]]) -> str | None:
    """Return the first problem, from each process's problem and `_identity`."""
    for process, (problem, _) in enumerate(reports):
        if problem is not None:
            alone = len(reports) == 1
            return problem if alone else f"{problem} (found by process {process})"
    if any(identity != reports[0][1] for _, identity in reports):
        return "it was replaced while the processes verified it"
    return None


def _sizes_here(saved: Mapping[str, LeafSpec], targets: _Targets) -> dict[str, int]:
    """Return the bytes of each array that this process reads, at most."""
    sizes = {source: saved[source].num_bytes or 0 for source in targets}
    for source, target in targets.items():
        if target is not None and target.sharding is not None:
            on_devices = sum(bytes_by_device([target]).values())
            sizes[source] = min(sizes[source], on_devices)
    return sizes


def _parts(
    shape: tuple[int, ...], target: jax.ShapeDtypeStruct | None
) -> list[tuple[slice, ...]]:
    """Return the parts of an array that this process reads."""
    if target is None or target.sharding is None:
        return [(slice(None),) * len(shape)]
    indices = target.sharding.addressable_devices_indices_map(shape)
    return [index for index in indices.values() if index is not None]
