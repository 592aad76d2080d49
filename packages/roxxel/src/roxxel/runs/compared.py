"""What differs between two trainings: of two runs, or of one run trained again.

`diff`, `verify`, `drill` and `replay` describe it by one class, `Parting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from roxxel_ckpt.values import STATE_DIGEST, different_leaves
from roxxel_curriculum.run_log import TIMING_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_train import RunFolder

Kind: TypeAlias = Literal["config", "data", "update", "numbers"]

OF_DATA = frozenset(
    {
        *("phase", "tokens", "tokens_by_source", "planned_tokens_by_source"),
        *("rows_by_source", "digest"),
    }
)
"""Fields of a row that record what was read."""

OF_UPDATE = ("learning_rate", "skipped")
"""Fields of a row that record how it was learned."""

# Of `extra`: each run has its own, and `made_by` counts the steps of a whole run.
_OWN = ("run", "log", "plan", "made_by")
NAMED_FIRST = ("digest", "loss", "grad_norm")
"""Fields to name first if several values differ at a step."""


@dataclass(frozen=True)
class Parting:
    """One thing that differs between two trainings, and where it first does.

    Attributes:
        kind: `config`, `data`, `update` or `numbers`.
        step: The first step with the difference, from 0. Step k is the batch of update
            k + 1; the log and checkpoints call it step k + 1.
        what: A key of the config, a row of the batch, a field of the log, or the leaf
            of a checkpoint.
        values: The value of the first training and of the second; or one text that says
            how far they are apart.
        reasons: What the plans of the runs say about it; only for data.

    Example:
        >>> print(Parting("numbers", 4, "loss", ("2.5", "2.25")))
        numbers  step 4: loss: 2.5 and 2.25
    """

    kind: Kind
    step: int
    what: str
    values: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the difference, and on further lines its reasons."""
        one, *others = self.values
        both = f"{one} in both" if others == [one] else " and ".join(self.values)
        lines = [f"{self.kind:8} step {self.step}: {self.what}: {both}"]
        return "\n".join([*lines, *(f"         {each}" for each in self.reasons)])


def compare_rows(
    a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]
) -> tuple[list[Parting], int]:
    """Compare the rows of two logs; return the first differences, and the rows.

    Times are left out. The differences are those of the first step with any.

    Example:
        >>> rows = [{"kind": "train", "step": 5, "loss": loss} for loss in (2.5, 2.25)]
        >>> found, num_rows = compare_rows(*([row] for row in rows))
        >>> str(found[0]), num_rows
        ('numbers  step 4: loss: 2.5 and 2.25', 1)
    """
    rows = [_by_place(each) for each in (a, b)]
    keys = sorted(rows[0].keys() | rows[1].keys(), key=lambda key: (key[1], key[0]))
    found: list[Parting] = []
    for kind, row_step in keys:
        step = row_step - 1
        if found and found[0].step < step:
            break
        ones, others = (each.get((kind, row_step), []) for each in rows)
        if len(ones) != len(others):
            found.append(_uneven(step, kind, len(ones), len(others)))
        found += [
            Parting(_kind_of(name), step, name, (str(x), str(y)))
            for pair in zip(ones, others, strict=False)
            for name, x, y in _different_values(*map(_untimed, pair))
        ]
    first = [each for name in NAMED_FIRST for each in found if each.what == name]
    return [*first, *(x for x in found if x.what not in NAMED_FIRST)], len(keys)


def compare_saves(
    a: Mapping[int, str], b: Mapping[int, str]
) -> tuple[list[Parting], list[int]]:
    """Compare the saves in two logs, by the digests of their states.

    Returns:
        The differences, and the steps of equal saves.

    Example:
        >>> found, equal = compare_saves({2: "a0", 4: "b1"}, {2: "a0", 4: "c2"})
        >>> str(found[0]), equal
        ('numbers  step 3: state_digest: b1 and c2', [2])
    """
    found: list[Parting] = []
    equal: list[int] = []
    for step in sorted(a.keys() | b.keys()):
        if a.get(step) == b.get(step):
            equal.append(step)
        elif step in a and step in b:
            values = a[step], b[step]
            found.append(Parting("numbers", step - 1, STATE_DIGEST, values))
        else:
            found.append(_uneven(step - 1, "save", step in a, step in b))
    return found, equal


def compare_checkpoints(
    a: RunFolder, b: RunFolder, step: int
) -> tuple[list[Parting], int]:
    """Compare a checkpoint of two runs; also return how many leaves are equal.

    Leaves are compared bit by bit. Values saved with them are compared too, except the
    run's id, its plan and the place in its log.
    """
    leaves, equal = different_leaves(*(f"{x}/checkpoints@{step}" for x in (a, b)))
    beside = [_beside(each, step) for each in (a, b)]
    found = [of_checkpoint(step, each.name, each.what) for each in leaves]
    found += [
        of_checkpoint(step, name, str(x), str(y))
        for name, x, y in _different_values(*beside)
    ]
    return found, equal


def of_checkpoint(step: int, what: str, *values: str) -> Parting:
    """Return what differs in the checkpoint of a step, such as a leaf.

    Example:
        >>> print(of_checkpoint(6, "model/bias", "1 of 8 values differ"))
        numbers  step 5: model/bias of checkpoint 6: 1 of 8 values differ
    """
    return Parting("numbers", step - 1, f"{what} of checkpoint {step}", values)


def common_steps(a: RunFolder, b: RunFolder, after: int = 0) -> list[int]:
    """Return the steps after `after` at which both runs have a sound checkpoint."""
    kept = [{each.step for each in run.checkpoints()[0]} for run in (a, b)]
    return sorted(step for step in kept[0] & kept[1] if step > after)


def _kind_of(field: str) -> Kind:
    if field in OF_DATA:
        return "data"
    return "update" if field in OF_UPDATE else "numbers"


def _by_place(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    found: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        found.setdefault((row["kind"], row["step"]), []).append(row)
    return found


def _uneven(step: int, kind: str, first: int, second: int) -> Parting:
    values = f"{first:d} in the log", f"{second:d}"
    return Parting("numbers", step, f"rows of the kind {kind!r}", values)


def _untimed(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() - TIMING_FIELDS}


def _beside(run: RunFolder, step: int) -> dict[str, Any]:
    """Return the values that a checkpoint holds besides its arrays, by name."""
    [found] = (each for each in run.checkpoints()[0] if each.step == step)
    extra = {n: x for n, x in found.extra.items() if n not in _OWN}
    return {**found.metrics, **extra}


def _different_values(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    names = sorted(a.keys() | b.keys())
    return [(n, a.get(n), b.get(n)) for n in names if a.get(n) != b.get(n)]
