"""The receipt of a replay: what was trained, from what, and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_store.output import replace_file
from roxxel_store.records import RecordKind
from roxxel_train import RunFolderError
from roxxel_train.run_folder import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel.run import Run

RECEIPT = RecordKind(
    "receipt of a replay",
    1,
    remedy="give the replay.json that `roxxel replay` wrote",
    error=RunFolderError,
    mark="roxxel-replay",
    needs=("run", "without", "start", "each", "corpora", "branches", "environment"),
    is_sealed=False,
)

_SAME = ("corpora", "checkpoint", "branches")
"""What must be equal when a replay is repeated anywhere."""


@dataclass(frozen=True)
class Comparison:
    """Whether the control branch is its run, bit for bit.

    Attributes:
        step: Last step of which both have a checkpoint; None without one.
        is_equal: Whether model and optimizer are equal there.
        num_rows: Rows of both logs that were compared.
        first_difference: Step of the first row whose values differ; None if all agree.
        reasons: What differs between run and control, and may explain it.
    """

    step: int | None
    is_equal: bool
    num_rows: int
    first_difference: int | None
    reasons: Sequence[str] = ()

    def __str__(self) -> str:
        """Return the comparison as one sentence."""
        rows = f"{self.num_rows} rows of its log"
        if self.step is None:
            text = f"no step with a checkpoint in both; {rows} "
            text += (
                "are equal"
                if self.first_difference is None
                else f"differ from step {self.first_difference} on"
            )
        elif self.is_equal and self.first_difference is None:
            return f"equals the run bit for bit at step {self.step:,}, and in {rows}"
        else:
            at = self.first_difference
            where = "" if at is None else f"; the log differs from step {at:,} on"
            text = f"differs from the run at step {self.step:,}{where}"
        return f"{text}; {'; '.join(self.reasons)}" if self.reasons else text


def write_receipt(path: Path, members: Mapping[str, Any]) -> None:
    """Write a receipt, whole or not at all."""
    replace_file(path, RECEIPT.pack(members), path.with_name(path.name + ".tmp"))


def read_receipt(path: Path) -> dict[str, Any]:
    """Read a receipt.

    Raises:
        RunFolderError: The file is missing, damaged, or no receipt.
    """
    if not path.is_file():
        raise RunFolderError(f"{path}: there is no such file; {RECEIPT.remedy}")
    return RECEIPT.parse(path.read_bytes(), str(path))


def corpora_of(run: Run) -> dict[str, str]:
    """Return the fingerprint of each source of a run, by its name."""
    data = run.files.data()
    return {
        shown_name(each["name"], data.primary): each["fingerprint"]
        for each in data.state["sources"]
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield each fact of a receipt that a repeated replay does not confirm."""
    for name in _SAME:
        yield from _differences(name, then.get(name), now.get(name))


def changed_environment(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs in machine and software, which may explain other bits."""
    return [*_differences("", then["environment"], now["environment"])]


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in then.keys() | now.keys():
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(inner, then.get(key), now.get(key))
    elif then != now:
        yield f"{name}: {then} in the receipt, {now} here"
