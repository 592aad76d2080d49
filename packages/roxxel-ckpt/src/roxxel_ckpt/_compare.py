"""Match the leaves of a checkpoint with those of a live model, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from roxxel_ckpt.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel_ckpt._description import LeafSpec

_LINES_IN_TABLE = 20


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """What `restore` did with every leaf; names are paths such as `model/embed/kernel`.

    Attributes:
        step: Step of the checkpoint.
        restored: Leaves that now hold the checkpoint's values.
        new: Leaves the checkpoint does not hold; they keep their fresh values.
        dropped: Leaves of the checkpoint that the live objects do not have.
        mismatched: Leaves that differ in shape or dtype, with the checkpoint's
            shape and dtype first and the live one second; they keep their values.
        renamed: Live name by name in the checkpoint, where the two differ.
    """

    step: int
    restored: tuple[str, ...]
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, LeafSpec, LeafSpec], ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def is_exact(self) -> bool:
        """Whether checkpoint and live objects have the very same leaves."""
        return not (self.new or self.dropped or self.mismatched)

    def __str__(self) -> str:
        """Return a short table: one line a difference, most important first."""
        head = (
            f"step {self.step}: {len(self.restored)} restored, {len(self.new)} new, "
            f"{len(self.dropped)} dropped, {len(self.mismatched)} kept for another "
            f"shape or dtype, {len(self.renamed)} renamed"
        )
        lines = list(self._lines())
        if len(lines) > _LINES_IN_TABLE:
            hidden = len(lines) - _LINES_IN_TABLE
            lines = [*lines[:_LINES_IN_TABLE], f"  ... and {hidden} more"]
        return "\n".join([head, *lines])

    def _lines(self) -> Iterator[str]:
        for name, saved, live in self.mismatched:
            yield f"  kept     {name}: {saved} in the checkpoint, {live} now"
        for name in self.new:
            yield f"  new      {name}"
        for name in self.dropped:
            yield f"  dropped  {name}"
        for old, name in self.renamed.items():
            yield f"  renamed  {old} -> {name}"


@dataclasses.dataclass(frozen=True)
class RestorePlan:
    """Which leaf of a checkpoint replaces which live leaf.

    Attributes:
        source: Name in the checkpoint of every leaf that will be restored, by its
            live name.
        report: What the restore will do with every leaf.
    """

    source: Mapping[str, str]
    report: RestoreReport


def plan_restore(
    step: int,
    saved: Mapping[str, LeafSpec],
    live: Mapping[str, LeafSpec],
    rename: Mapping[str, str] | None = None,
    *,
    whole: bool = False,
) -> RestorePlan:
    """Match the leaves of a checkpoint with live ones by name, shape and dtype.

    Args:
        step: Step of the checkpoint.
        saved: Its leaves.
        live: Leaves of the live objects.
        rename: As for `Checkpointer.restore`.
        whole: Compare an optimizer of the checkpoint even if there is no live one.
    """
    if not whole and not any(name.startswith("optimizer/") for name in live):
        saved = {n: s for n, s in saved.items() if not n.startswith("optimizer/")}
    names = _live_names(saved, rename or {})
    old_name = {new: old for old, new in names.items()}
    source: dict[str, str] = {}
    mismatched: list[tuple[str, LeafSpec, LeafSpec]] = []
    for name, spec in live.items():
        if name in old_name:
            stored = saved[old_name[name]]
            if stored == spec:
                source[name] = old_name[name]
            else:
                mismatched.append((name, stored, spec))
    report = RestoreReport(
        step=step,
        restored=tuple(source),
        new=tuple(name for name in live if name not in old_name),
        dropped=tuple(old for old, new in names.items() if new not in live),
        mismatched=tuple(mismatched),
        renamed={old: new for old, new in names.items() if old != new and new in live},
    )
    return RestorePlan(source, report)


def _live_names(
    saved: Mapping[str, LeafSpec], rename: Mapping[str, str]
) -> dict[str, str]:
    """Return the live name of every leaf of a checkpoint.

    The optimizer moments of a renamed part are renamed, too: a moment is a leaf whose
    name ends in the name of a parameter.
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
            f"rename names {sorted(_bare(name) for name in unused)}, of which the "
            "checkpoint's model holds nothing; use its paths as `roxxel-ckpt show` "
            "prints them"
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
                f"rename sends both {sources[new]} and {old} to {new}; "
                "give each part its own name"
            )
    return names


def _bare(name: str) -> str:
    return name.strip("/").removeprefix("model/")


def check_restorable(
    report: RestoreReport, directory: str, *, strict: bool, on_mismatch: str
) -> None:
    """Refuse a plan that the arguments of `restore` do not allow.

    Raises:
        CheckpointMismatchError: A shape or dtype differs and `on_mismatch` is
            `"error"`, anything differs and `strict` is set, or no leaf matches.
    """
    if strict and not report.is_exact:
        raise CheckpointMismatchError(
            f"{directory}: the checkpoint is not exactly this model "
            f"({_summary(report)}); omit strict=True to restore the leaves that fit"
        )
    if report.mismatched and on_mismatch == "error":
        differences = "; ".join(
            f"{name}: {saved} in the checkpoint, {live} now"
            for name, saved, live in report.mismatched[:_LINES_IN_TABLE]
        )
        more = len(report.mismatched) - _LINES_IN_TABLE
        raise CheckpointMismatchError(
            f"{directory}: {len(report.mismatched)} leaves have another shape or dtype "
            f"({differences}{f'; and {more} more' if more > 0 else ''}); "
            'Checkpointer.restore(on_mismatch="keep") keeps the live values of these'
        )
    if not report.restored:
        raise CheckpointMismatchError(
            f"{directory}: no leaf of the checkpoint fits this model "
            f"({_summary(report)}); it was saved from another one"
        )


def _summary(report: RestoreReport) -> str:
    parts = [
        f"{label} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for label, names in (
            ("another shape or dtype:", [name for name, _, _ in report.mismatched]),
            ("not in it:", list(report.new)),
            ("only in it:", list(report.dropped)),
        )
        if names
    ]
    return "; ".join(parts)
