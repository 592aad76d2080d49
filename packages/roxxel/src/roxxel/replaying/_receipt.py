"""The receipt of a replay: what was trained, from what, and what came out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct, field
from roxxel_store.files import read_file
from roxxel_store.output import replace_file
from roxxel_store.records import RecordKind
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_RECEIPT = RecordKind(
    "receipt of a replay",
    1,
    remedy="give the replay.json that `roxxel replay` wrote",
    error=RunFolderError,
    mark="roxxel-replay",
    is_sealed=False,
)
_MAX_BYTES = 1 << 26

_TOKENS = re.compile(r"tokens:\[[0-9]{1,18},[0-9]{1,18}\)")


class TheRun(Struct, frozen=True, forbid_unknown_fields=True):
    """The run of a replay: the name of its folder, and its id."""

    name: str
    id: str | None


class TheCheckpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint from which the branches began."""

    step: int
    digest: str


class Environment(Struct, frozen=True, forbid_unknown_fields=True):
    """What may change the bits of a branch."""

    versions: dict[str, str]
    devices: dict[str, int]
    device_kinds: list[str]
    processes: int | None
    xla_flags: str = field(name="XLA_FLAGS")


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a branch ended; attributes as in `Branch`."""

    step: int
    state: str
    parameters: str
    feed: str


class Equality(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the control was its run; attributes as in `Comparison`."""

    step: int | None
    is_equal: bool
    num_rows: int
    first_difference: int | None


class Receipt(Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt: what a replay trained, from what, and what came out.

    Everything in it is computed anew by `check_replay`, but for the name of the run's
    folder and the environment.
    """

    run: TheRun
    without: Mapping[str, Sequence[int | list[int] | str]]
    start: int
    each: bool
    corpora: dict[str, str]
    checkpoint: TheCheckpoint | None
    environment: Environment
    control_is_the_run: Equality
    branches: dict[str, Result]
    losses: dict[str, dict[str, dict[int, float]]]
    distances: dict[str, float]

    def __post_init__(self) -> None:
        # msgspec cannot bound the kinds of a union: with a tuple of two it reads the
        # memory of another.
        for source, items in self.without.items():
            for item in items:
                if not _is_listed(item):
                    raise ValueError(
                        f"`without.{source}` holds {item!r}, which is no document, no "
                        "range of documents [3, 7] and no range of tokens"
                    )


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


def _is_listed(item: int | list[int] | str) -> bool:
    """Return whether an item is written as `Listed` has it; text names no file."""
    if isinstance(item, str):
        return _TOKENS.fullmatch(item) is not None
    bounds = item if isinstance(item, list) else [item, item + 1]
    return len(bounds) == 2 and 0 <= bounds[0] < bounds[1] < 2**62


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write a receipt, whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    replace_file(path, _RECEIPT.pack(_members(receipt)), draft)


def read_receipt(path: Path) -> Receipt:
    """Read a receipt.

    Raises:
        RunFolderError: The file is missing, damaged, or no receipt.
    """
    try:
        data = read_file(path, _MAX_BYTES, RunFolderError, _RECEIPT.remedy)
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path}: there is no such file; {_RECEIPT.remedy}"
        ) from error
    members = _RECEIPT.parse(data, str(path))
    try:
        return msgspec.convert(members, Receipt, str_keys=True)
    except msgspec.ValidationError as error:
        raise RunFolderError(
            f"{path}: is no receipt of a replay ({error}); {_RECEIPT.remedy}"
        ) from error


def named_run(receipt: Path, then: Receipt) -> Path:
    """Return the run that a receipt names, in the receipt's folder or beside it.

    A receipt may come from anybody, so it opens nothing elsewhere.

    Raises:
        RunFolderError: There is no such folder.
    """
    name, folder = then.run.name, receipt.absolute().parent
    if name not in {"", ".", ".."} and "/" not in name:
        for each in (folder, folder.parent):
            if (each / name).is_dir():
                return each / name
    raise RunFolderError(
        f"{receipt}: the run of this receipt, {name!r}, is not beside the receipt; "
        "give RUN, the folder where it is now"
    )


def differences(then: Receipt, now: Receipt) -> list[str]:
    """Return each fact of a receipt that a repeated replay does not confirm."""
    return [*_differences("", _facts(then), _facts(now))]


def changed_environment(then: Receipt, now: Receipt) -> list[str]:
    """Return what differs in machine and software, which may explain other bits."""
    environments = (_members(each)["environment"] for each in (then, now))
    return [*_differences("", *environments)]


def _facts(receipt: Receipt) -> dict[str, Any]:
    """Return what does not depend on where a replay is repeated."""
    members = _members(receipt)
    del members["environment"], members["run"]["name"]
    return members


def _members(receipt: Receipt) -> dict[str, Any]:
    return msgspec.to_builtins(receipt, str_keys=True)


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        table, other = cast("dict[str, Any]", then), cast("dict[str, Any]", now)
        for key in sorted(table.keys() | other.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, table.get(key), other.get(key))
    elif (shown := json.dumps(then)) != (found := json.dumps(now)):  # NaN equals NaN
        yield f"{name}: {shown} in the receipt, {found} here"
