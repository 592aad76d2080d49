"""Receipts: what a command trained again, from what, with which results.

Whoever gets a receipt can repeat the command and compare all results with the receipt.
A receipt may come from anybody, so it is data of a fixed form. No text in it is opened
as a file, except the name of a folder next to it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import jax
import msgspec
from msgspec import Struct, field
from roxxel_ckpt.coordination import process_index
from roxxel_store.files import read_file, replace_file
from roxxel_store.records import RecordKind
from roxxel_store.urls import absolute
from roxxel_train import RunFolderError
from roxxel_train.distributed import barrier

from roxxel.runs.run import Run, open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from roxxel.runs.run import Corpus

_MAX_BYTES = 1 << 26
_TOKENS = re.compile(r"tokens:\[[0-9]{1,18},[0-9]{1,18}\)")


class TheRun(Struct, frozen=True, forbid_unknown_fields=True):
    """The run of a receipt: the name of its folder, and its id."""

    name: str
    id: str | None

    @classmethod
    def of(cls, run: Run) -> TheRun:
        """Return the facts about a run for a receipt."""
        name = absolute(run.path).rstrip("/").rpartition("/")[2]
        return cls(name, (run.files.record or {}).get("id"))


class Environment(Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that may change the bits of a repeated training."""

    versions: dict[str, str]
    devices: dict[str, int]
    device_kinds: list[str]
    processes: int | None
    xla_flags: str = field(name="XLA_FLAGS")

    @classmethod
    def of(cls, trained: Run) -> Environment:
        """Return the environment of a run that this program has trained."""
        started = trained.files.newest_start
        return cls(
            versions=started.get("versions", {}),
            devices=started.get("devices", {}),
            device_kinds=sorted({device.device_kind for device in jax.devices()}),
            processes=started.get("processes"),
            xla_flags=os.environ.get("XLA_FLAGS", ""),
        )


class Receipt(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The facts in every receipt.

    A check computes everything in a receipt anew, except the name of the run's folder
    and the environment.
    """

    run: TheRun
    corpora: dict[str, str]
    environment: Environment


_R = TypeVar("_R", bound=Receipt)


@dataclass(frozen=True)
class ReceiptKind(Generic[_R]):
    """The receipts of one command.

    Attributes:
        command: Name of the command.
        form: The class of its receipts.

    >>> ReceiptKind("verify", Receipt).read("receipt.json")
    Traceback (most recent call last):
    roxxel_train.errors.RunFolderError: receipt.json: there is no such file; give the \
receipt that `roxxel verify` wrote
    """

    command: str
    form: type[_R]

    def write(self, path: Path, receipt: _R) -> None:
        """Write a receipt in the first of several processes, for which all wait."""
        if process_index() == 0:
            replace_file(path, self._record.to_bytes(_members(receipt)))
        barrier(f"{self.command}: the receipt is written")

    def read(self, path: str | os.PathLike[str]) -> _R:
        """Read a receipt.

        Raises:
            RunFolderError: The file is missing, damaged, or no receipt of the command.
        """
        remedy = self._record.remedy
        try:
            data = read_file(path, _MAX_BYTES, RunFolderError, remedy)
        except FileNotFoundError as error:
            raise RunFolderError(f"{path}: there is no such file; {remedy}") from error
        members = self._record.parse(data, os.fspath(path))
        try:
            return msgspec.convert(members, self.form, str_keys=True)
        except msgspec.ValidationError as error:
            raise RunFolderError(
                f"{path}: is no {self._record.name} ({error}); {remedy}"
            ) from error

    @property
    def _record(self) -> RecordKind:
        return receipt_record(self.command)


def receipt_record(command: str) -> RecordKind:
    """Return how the receipts of a command are written as JSON."""
    return RecordKind(
        f"receipt of `roxxel {command}`",
        1,
        remedy=f"give the receipt that `roxxel {command}` wrote",
        error=RunFolderError,
        mark=f"roxxel-{command}",
        is_sealed=False,
    )


class Interval(Struct, frozen=True, forbid_unknown_fields=True):
    """What a receipt says about an interval; attributes as in `Verification`."""

    stop: int
    is_equal: bool
    num_rows: int
    num_saves: int
    num_leaves: int
    losses: Mapping[int, float]
    feeds: Mapping[int, str]
    states: Mapping[int, str]


class VerifyReceipt(Receipt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The results of a run's intervals, by the step at which each begins."""

    intervals: dict[int, Interval]

    def __post_init__(self) -> None:
        # An empty receipt would always hold, and its steps must not be trained twice.
        bounds = [
            bound
            for start, interval in self.intervals.items()
            for bound in (start, interval.stop)
        ]
        if not bounds or bounds != sorted(bounds):
            raise ValueError(
                "`intervals` is empty, or some overlap or are not in order"
            )


VERIFY_RECEIPTS = ReceiptKind("verify", VerifyReceipt)


class TheCheckpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint from which the branches began."""

    step: int
    digest: str


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a branch ended; attributes as in `Branch`."""

    step: int
    state: str
    feed: str


class Equality(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the control was its run; attributes as in `Comparison`."""

    step: int | None
    is_equal: bool
    num_rows: int
    first_difference: int | None


class ReplayReceipt(Receipt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a replay trained, from what, with which results."""

    without: Mapping[str, Sequence[int | list[int] | str]]
    start: int
    each: bool
    checkpoint: TheCheckpoint | None
    control_is_the_run: Equality
    branches: dict[str, Result]
    losses: dict[str, dict[str, dict[int, float]]]
    distances: dict[str, float]

    def __post_init__(self) -> None:
        # msgspec cannot bound the kinds of a union: with a tuple of two it reads the
        # memory of another.
        for source, items in self.without.items():
            for item in items:
                if not _names_tokens(item):
                    raise ValueError(
                        f"`without.{source}` holds {item!r}, which is no document, no "
                        "range of documents [3, 7] and no range of tokens"
                    )


def _names_tokens(item: int | list[int] | str) -> bool:
    """Return whether an item is a document, a range of them, or a range of tokens."""
    if isinstance(item, str):  # `without` takes other texts as names of files
        return _TOKENS.fullmatch(item) is not None
    bounds = item if isinstance(item, list) else [item, item + 1]
    # NumPy holds the numbers as int64.
    return len(bounds) == 2 and 0 <= bounds[0] < bounds[1] < 2**62


REPLAY_RECEIPTS = ReceiptKind("replay", ReplayReceipt)


def run_of(
    path: Path,
    then: Receipt,
    run: str | os.PathLike[str] | None,
    sources: Mapping[str, Corpus] | None,
    *,
    trust: bool,
) -> tuple[Run, list[str]]:
    """Open the run of a receipt; also return a line if it is another run.

    Without `run`, open the folder that the receipt names, next to the receipt.

    Raises:
        RunFolderError: There is no such folder, or it holds no run.
    """
    where = _beside(path, then.run.name) if run is None else run
    found = open_run(where, sources, trust=trust)
    other = TheRun.of(found).id
    if other == then.run.id:
        return found, []
    return found, [f"run.id: {then.run.id!r} in the receipt, {other!r} in {where}"]


def unconfirmed(then: Receipt, now: Receipt, say: Callable[[str], object]) -> list[str]:
    """Return each fact of a receipt that is not confirmed.

    If there are any, differences of machine and software come first, because they may
    explain other bits. Otherwise `say` gets these differences.
    """
    tables = [_members(each) for each in (then, now)]
    changed = [*_differences("", *(each.pop("environment") for each in tables))]
    for each in tables:
        del each["run"]["name"]
    found = [*_differences("", *tables)]
    if found:
        return [*changed, *found]
    for line in changed:
        say(f"note: {line}")
    return []


def _beside(receipt: Path, name: str) -> Path:
    """Return the folder of a name: in the receipt's folder, or next to that folder."""
    folder = receipt.absolute().parent
    if name not in {"", ".", ".."} and "/" not in name:
        for each in (folder, folder.parent):
            if (each / name).is_dir():
                return each / name
    raise RunFolderError(
        f"{receipt}: the run of this receipt, {name!r}, is not beside the receipt; "
        "give RUN, the folder where it is now"
    )


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
