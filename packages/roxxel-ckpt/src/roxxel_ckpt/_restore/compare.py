"""Match the leaves of a checkpoint with the leaves of a live model, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from roxxel_store import roxxel_command

from roxxel_ckpt.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_ckpt._arrays.layout import LeafSpec

STATE_ROOT = "state"
"""First part of the names of leaves that `save(state=)` was given."""

_LINES_IN_ERROR = 3
_LINES_IN_TABLE = 20


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """What `restore` did with every leaf; names are paths such as `model/embed/kernel`.

    Attributes:
        step: Step of the checkpoint.
        restored: Leaves that now hold the checkpoint's values.
        new: Leaves that only the live objects have; these leaves keep their values.
        dropped: Leaves that only the checkpoint has.
        mismatched: `(name, checkpoint's spec, live spec)` of each leaf whose shape or
            dtype differs; these leaves keep their live values.
        renamed: Maps each renamed leaf's name in the checkpoint to its live name.

    Example:
        >>> report = RestoreReport(10, restored=("model/kernel",), new=("model/bias",))
        >>> report.is_exact
        False
    """

    step: int
    restored: tuple[str, ...]
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, LeafSpec, LeafSpec], ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def is_exact(self) -> bool:
        """Whether checkpoint and live objects have exactly the same leaves."""
        return not (self.new or self.dropped or self.mismatched)

    def __str__(self) -> str:
        """Return a short table, with one line per difference, mismatches first."""
        head = (
            f"step {self.step}: {len(self.restored)} restored, {len(self.new)} new, "
            f"{len(self.dropped)} dropped, {len(self.mismatched)} kept for another "
            f"shape or dtype, {len(self.renamed)} renamed"
        )
        renamed = (f"{old}: renamed to {name}" for old, name in self.renamed.items())
        lines = [*_differences(self), *renamed]
        hidden = len(lines) - _LINES_IN_TABLE
        more = [f"... and {hidden} more"] if hidden > 0 else []
        return "\n  ".join([head, *lines[:_LINES_IN_TABLE], *more])


@dataclasses.dataclass(frozen=True)
class Options:
    """How to fit a checkpoint to the live state; see `restore` and `load`."""

    strict: bool = False
    on_mismatch: Literal["error", "keep"] = "error"
    rename: Mapping[str, str] | None = None
    is_load: bool = False

    def __post_init__(self) -> None:
        if self.on_mismatch not in {"error", "keep"}:
            raise ValueError(
                f'on_mismatch must be "error" or "keep", got {self.on_mismatch!r}'
            )


def plan_restore(
    step: int,
    saved: Mapping[str, LeafSpec],
    live: Mapping[str, LeafSpec],
    rename: Mapping[str, str] | None = None,
    *,
    whole: bool = False,
) -> RestoreReport:
    """Match the leaves of a checkpoint with live leaves by name, shape and dtype.

    With `whole`, the checkpoint's optimizer is compared even if there is no live
    optimizer.
    """
    if not whole and not any(name.startswith("optimizer/") for name in live):
        saved = {n: s for n, s in saved.items() if not n.startswith("optimizer/")}
    names = _live_names(saved, rename or {})
    old_name = {new: old for old, new in names.items()}
    common = [
        (n, saved[old_name[n]], spec) for n, spec in live.items() if n in old_name
    ]
    fitting = {name for name, stored, spec in common if spec.holds(stored)}
    return RestoreReport(
        step=step,
        restored=tuple(name for name, *_ in common if name in fitting),
        new=tuple(name for name in live if name not in old_name),
        dropped=tuple(old for old, new in names.items() if new not in live),
        mismatched=tuple(leaf for leaf in common if leaf[0] not in fitting),
        renamed={old: new for old, new in names.items() if old != new and new in live},
    )


def _live_names(
    saved: Mapping[str, LeafSpec], rename: Mapping[str, str]
) -> dict[str, str]:
    """Map the names in a checkpoint to live names.

    `rename` also renames optimizer moments: optimizer leaves whose names end in the
    name of a renamed parameter.
    """
    moved = {
        "model/" + _bare(old): "model/" + _bare(new) for old, new in rename.items()
    }
    unused = set(moved)
    names: dict[str, str] = {}
    endings: dict[str, str] = {}
    for name in saved:
        names[name] = name
        if not name.startswith("model/"):
            continue
        fits = [old for old in moved if name == old or name.startswith(old + "/")]
        if fits:
            longest = max(fits, key=len)
            names[name] = moved[longest] + name[len(longest) :]
            unused.discard(longest)
            endings["/" + _bare(name)] = "/" + _bare(names[name])
    if unused:
        raise CheckpointMismatchError(
            f"rename has {sorted(_bare(name) for name in unused)}, which the model in "
            "the checkpoint lacks",
            f"use paths that `{roxxel_command('ckpt ls FOLDER@STEP')}` prints",
        )
    for name in saved:
        if name.startswith("optimizer/") and endings:
            fits = [ending for ending in endings if name.endswith(ending)]
            if fits:
                longest = max(fits, key=len)
                names[name] = name[: -len(longest)] + endings[longest]
    sources: dict[str, str] = {}
    for old, new in names.items():
        if sources.setdefault(new, old) != old:
            raise CheckpointMismatchError(
                f"rename maps both {sources[new]} and {old} to {new}",
                "give each part its own name",
            )
    return names


def _bare(name: str) -> str:
    return name.strip("/").removeprefix("model/")


def check_form(location: str, saved: Mapping[str, LeafSpec], *, is_tree: bool) -> None:
    """Raise CheckpointMismatchError if NNX objects and another pytree meet.

    `is_tree` says whether the checkpoint is read into a pytree, which may be empty.
    """
    saved_as_tree = any(name.partition("/")[0] == STATE_ROOT for name in saved)
    if saved_as_tree and not is_tree:
        raise CheckpointMismatchError(
            f"{location}: holds a pytree that save(state=) was given, and no NNX "
            "objects",
            "read it with Checkpointer(path).load(like=tree)",
        )
    if is_tree and saved and not saved_as_tree:
        raise CheckpointMismatchError(
            f"{location}: holds NNX objects, which load() does not read",
            "call restore() of Checkpointer(path, model, optimizer)",
        )


def check_restorable(report: RestoreReport, location: str, options: Options) -> None:
    """Raise a CheckpointMismatchError if the options forbid the restore."""
    if options.strict and not report.is_exact:
        raise CheckpointMismatchError(
            f"{location}: the checkpoint does not match this model exactly "
            f"({_listed(_differences(report))})",
            "omit strict=True to restore the leaves that match",
        )
    if report.mismatched and options.on_mismatch == "error":
        counted = dataclasses.replace(report, new=(), dropped=())
        raise CheckpointMismatchError(
            f"{location}: {_number_of(report.mismatched)} another shape or dtype "
            f"({_listed(_differences(counted), 1)})",
            "build the model with the saved sizes, or keep the values that it has now "
            'in these leaves with Checkpointer.restore(on_mismatch="keep")',
        )
    if not report.restored:
        raise CheckpointMismatchError(
            f"{location}: no leaf of the checkpoint fits this model "
            f"({_listed(_differences(report))})",
            "restore a checkpoint of this model",
        )


def check_keeps_learned(
    report: RestoreReport, location: str, saved: Mapping[str, LeafSpec]
) -> None:
    """Raise a CheckpointMismatchError if live objects lack floats of a checkpoint.

    Weights, moments and averages were learned, so they may not be dropped. Random keys
    and counters may: a schedule that becomes a constant drops its counter.
    """
    lost = [name for name in report.dropped if saved[name].is_float]
    if lost:
        raise CheckpointMismatchError(
            f"{location}: {_number_of(lost)} no place in this model and optimizer "
            f"({_listed(lost, 1)}), so what was learned would be lost",
            "build the model and the optimizer that were saved",
        )


def check_loadable(
    report: RestoreReport, location: str, without_values: list[str], *, strict: bool
) -> None:
    """Raise a CheckpointMismatchError unless the checkpoint fits `like` of `load`.

    `without_values` names the leaves of `like` that have a shape and no values.
    """
    if not strict:
        report = dataclasses.replace(report, new=tuple(without_values), dropped=())
    problems = _differences(report)
    if not report.restored and not problems:
        problems = ["they have no leaf in common"]
    if problems:
        remedy = "give `like` the structure that was saved"
        if strict and not report.mismatched:
            remedy += ", or strict=False to load the leaves that match"
        raise CheckpointMismatchError(
            f"{location}: the checkpoint and `like` differ ({_listed(problems)})",
            remedy,
        )


def _differences(report: RestoreReport) -> list[str]:
    """Return a line for each leaf that differs, first those of another shape."""
    return [
        *(
            f"{name}: {saved} in the checkpoint, {live} now"
            for name, saved, live in report.mismatched
        ),
        *(f"{name}: not in the checkpoint" for name in report.new),
        *(f"{name}: only in the checkpoint" for name in report.dropped),
    ]


def _number_of(leaves: Sequence[object]) -> str:
    return "1 leaf has" if len(leaves) == 1 else f"{len(leaves)} leaves have"


def _listed(lines: Sequence[str], num_shown: int = _LINES_IN_ERROR) -> str:
    more = len(lines) - num_shown
    shown = "; ".join(lines[:num_shown])
    return f"{shown}{f'; and {more} more' if more > 0 else ''}"
