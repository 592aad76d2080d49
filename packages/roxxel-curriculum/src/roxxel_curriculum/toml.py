"""Reads schedules from TOML, and suggests the nearest key for an unknown key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum._arguments import (
    checked_count,
    checked_overlap,
    merged_skips,
)
from roxxel_curriculum._documents import check_documents
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import checked_primary
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum.curriculum import Curriculum
from roxxel_curriculum.phase import Phase
from roxxel_curriculum.policy import Policy, parse_policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from roxxel_format import TokenReader

    from roxxel_curriculum._documents import Documents


@dataclass(frozen=True)
class Schedule:
    """The arguments of a `Curriculum` without its corpora, as in a TOML file.

    Attributes:
        phases: Phases in training order.
        longest: See `Curriculum`.
        policies: See `Curriculum`.
        max_epochs: See `Curriculum`.
        overlap: See `Curriculum`.
        skips: Pairs `(at, count)`; see `Curriculum`.
        without: Documents to withdraw by source; see `Curriculum`.
        primary: Name of the primary source; see `Curriculum`.
        tokenizers: Tokenizers by source; see `Curriculum`.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> schedule = Schedule((Phase(9, 4, 129),), overlap=1)
        >>> schedule.curriculum(PositionReader(10_000)).total_steps
        9
    """

    phases: tuple[Phase, ...]
    longest: int | None = None
    policies: Mapping[str, Policy | str | int] = field(
        default_factory=dict[str, "Policy | str | int"]
    )
    max_epochs: int | None = None
    overlap: int = 0
    skips: tuple[tuple[int, int], ...] = ()
    without: Mapping[str, Documents] = field(default_factory=dict[str, "Documents"])
    primary: str = PRIMARY
    tokenizers: Mapping[str, str] = field(default_factory=dict[str, str])

    def curriculum(
        self,
        primary_streamer: TokenReader,
        mix_streamers: Mapping[str, TokenReader] | None = None,
    ) -> Curriculum:
        """Return a curriculum with this schedule and some corpora.

        Args:
            primary_streamer: The primary source.
            mix_streamers: Further sources by name.

        Raises:
            CurriculumError: The corpora cannot meet the schedule.
        """
        return Curriculum(
            primary_streamer,
            self.phases,
            mix_streamers,
            longest=self.longest,
            policies=self.policies,
            max_epochs=self.max_epochs,
            overlap=self.overlap,
            skips=self.skips,
            without=self.without,
            primary=self.primary,
            tokenizers=self.tokenizers,
        )

    def relative_to(self, folder: Path) -> Schedule:
        """Return the schedule with the paths in `without` relative to a folder."""
        without = {
            name: folder / documents if isinstance(documents, str) else documents
            for name, documents in self.without.items()
        }
        return replace(self, without=without)


def load_schedule(path: str | PathLike[str]) -> Schedule:
    """Read a schedule from a TOML file; see `parse_schedule`.

    Paths of files in `without` are relative to the folder of the file.

    Raises:
        OSError: The file cannot be read.
        CurriculumError: The file is not a schedule; the message names the file.
    """
    path = os.path.expanduser(path)  # noqa: PTH111 - raises no error
    content = Path(path).read_bytes()
    try:
        schedule = parse_schedule(content.decode("utf-8-sig"))
        return schedule.relative_to(Path(path).parent)
    except (TypeError, ValueError) as error:
        raise CurriculumError(f"{path}: {error}") from error


def parse_schedule(text: str) -> Schedule:
    """Return the schedule in the text of a TOML file.

    For example::

        primary = "web"                 # the name of the primary source; omit for self
        overlap = 1
        skips = [[1200, 3]]             # before step 1200, skip the data of 3 steps

        [policies]
        code = "drop"                   # or "repeat", "stop", or a number of epochs
        math = { epochs = 2, then = "stop" }

        [tokenizers]                    # of corpora that record none
        code = "gpt2"

        [without]                       # documents that the run does not learn
        code = [17, [200, 300]]         # document 17, and 200 to 299
        math = "withdrawn.txt"          # a number on each line; or a .npy file

        [[phases]]
        steps = 1000                    # or epochs = 0.5, or tokens = 1_000_000
        batch_size = 16
        seq_len = 1025
        weights = { web = 0.7, code = 0.2, math = 0.1 }

    Raises:
        CurriculumError: The text is not TOML, a key is unknown, or a value is out of
            range.
        TypeError: `text` is not a str, or a value has the wrong type.
    """
    if not isinstance(cast("Any", text), str):
        raise TypeError(
            f"a schedule is the text of a TOML file, got {type(text).__name__}; "
            "read a file with load_schedule and a table with schedule_from"
        )
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CurriculumError(f"not TOML: {error}") from error
    return schedule_from(table)


def schedule_from(table: Mapping[str, Any]) -> Schedule:
    """Return the schedule in a table, such as one that was read from TOML or JSON.

    Raises:
        CurriculumError: A key is unknown, or a value is out of range.
        TypeError: A value has the wrong type.
    """
    given = _table(table, "a schedule")
    _check_keys(given, _names(Schedule), "a schedule")
    phases = _list(given.pop("phases", []), "phases")
    policies = _table(given.pop("policies", {}), "policies")
    skips = _list(given.pop("skips", []), "skips")
    without = _table(given.pop("without", {}), "without")
    tokenizers = _table(given.pop("tokenizers", {}), "tokenizers")
    schedule = Schedule(
        phases=tuple(_phase(phase, index) for index, phase in enumerate(phases)),
        policies={name: _policy(policy, name) for name, policy in policies.items()},
        skips=tuple(_skip(skip) for skip in skips),
        without=without,
        tokenizers=tokenizers,
        **given,
    )
    # `Curriculum` checks these values, too. Only here can the error name the file.
    checked_count("longest", schedule.longest)
    checked_count("max_epochs", schedule.max_epochs)
    checked_overlap(schedule.overlap)
    merged_skips(schedule.skips)
    checked_primary(schedule.primary, ())
    for name, documents in schedule.without.items():
        check_documents(documents, name)
    for name, policy in schedule.policies.items():
        parse_policy(policy, name)
    return schedule


def _phase(value: Any, index: int) -> Phase:
    table = _table(value, f"phase {index}")
    _check_keys(table, _names(Phase), f"phase {index}")
    for name in ("batch_size", "seq_len"):
        if name not in table:
            raise CurriculumError(
                f"phase {index} has no {name}; write {name} = a number"
            )
    try:
        return Phase(**table)
    except (TypeError, ValueError) as error:
        raise type(error)(f"phase {index}: {error}") from error


def _policy(value: Any, source: str) -> Policy | str | int:
    if not isinstance(value, Mapping):
        return value
    table = cast("Mapping[str, Any]", value)
    where = f"the policy of source {source!r}"
    _check_keys(table, _names(Policy), where)
    given: dict[str, Any] = {"epochs": None, **table}
    try:
        return Policy(**given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from error


def _skip(value: Any) -> tuple[int, int]:
    pair = _list(value, "a skip")
    if len(pair) != 2:
        raise CurriculumError(f"a skip is a pair [at, count], got {value}")
    return pair[0], pair[1]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{what} must be a list, got {value!r}")
    return list(cast("Sequence[Any]", value))


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a table of names and values, got {value!r}")
    return dict(cast("Mapping[str, Any]", value))


def _names(kind: type[Schedule | Phase | Policy]) -> list[str]:
    return [entry.name for entry in fields(kind)]


def _check_keys(table: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in table:
        if key in known:
            continue
        near = get_close_matches(str(key), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise CurriculumError(f"{where} has no key {key!r}; {hint}")
