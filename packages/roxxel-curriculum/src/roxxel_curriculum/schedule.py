"""The arguments of a curriculum without its corpora, as a file declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from roxxel_format.scans import Scan
from roxxel_store.declared import Count, Rule, check

from roxxel_curriculum._documents import (
    check_documents,
    is_listed_path,
    is_path,
    paths_in,
)
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import checked_primary
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum.curriculum import Curriculum
from roxxel_curriculum.phase import Phase  # noqa: TC001 - `check` reads the types
from roxxel_curriculum.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from roxxel_format import TokenReader

    from roxxel_curriculum._documents import Documents

_Policy = Annotated[
    Policy | Literal["drop", "repeat", "stop"] | Count,
    Rule(must_be='"drop", "repeat", "stop", a number of epochs, or a table of both'),
]
_Overlap = Annotated[int, Rule(at_least=0, at_most=1, must_be="0 or 1")]
_Skip = Annotated[
    tuple[Annotated[int, Rule(at_least=0)], Count],
    Rule(must_be="a pair [at, count], at from 0 and count from 1"),
]


@dataclass(frozen=True)
class Schedule:
    """The arguments of a `Curriculum` without its corpora.

    Use it to keep a schedule apart from the data. In the package `roxxel`,
    `load_schedule` reads a schedule from a TOML file.

    Attributes:
        phases: Phases in training order.
        longest: See `Curriculum`.
        policies: See `Curriculum`.
        max_epochs: See `Curriculum`.
        overlap: See `Curriculum`.
        skips: Pairs `(at, count)`; see `Curriculum`.
        without: Documents and tokens to withdraw by source; see `Curriculum`.
        primary: Name of the primary source; see `Curriculum`.
        tokenizers: Tokenizers by source; see `Curriculum`.

    Raises:
        CurriculumError: A value is out of range.
        TypeError: A value has the wrong type.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> schedule = Schedule((Phase(9, 4, 129),), overlap=1)
        >>> schedule.curriculum(PositionReader(10_000)).total_steps
        9
    """

    phases: tuple[Phase, ...]
    longest: Count | None = None
    policies: Mapping[str, _Policy] = field(default_factory=dict[str, "_Policy"])
    max_epochs: Count | None = None
    overlap: _Overlap = 0
    skips: tuple[_Skip, ...] = ()
    without: Mapping[str, Documents] = field(
        default_factory=dict[str, "Documents"], metadata={"kind": Mapping[str, Any]}
    )
    primary: str = PRIMARY
    tokenizers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check(self, CurriculumError)
        checked_primary(self.primary, ())
        for name, documents in self.without.items():
            check_documents(documents, name)

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
        names = [each.name for each in fields(self)]
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Curriculum(primary_streamer, mix_streamers=mix_streamers, **own)

    def relative_to(self, folder: Path) -> Schedule:
        """Return the schedule, with paths in `without` taken relative to a folder."""

        def moved(documents: Any) -> Any:
            if isinstance(documents, list | tuple):
                items = cast("Sequence[Any]", documents)
                return [folder / str(x) if is_listed_path(x) else x for x in items]
            return folder / str(documents) if is_path(documents) else documents

        without = {name: moved(each) for name, each in self.without.items()}
        return replace(self, without=without)

    @property
    def scans(self) -> dict[str, list[Scan]]:
        """The receipts of scans in `without`, by source.

        Raises:
            FileNotFoundError: A receipt does not exist.
            ShardError: A receipt is damaged.
        """
        found = {
            name: [Scan.read(x) for x in paths_in(each) if str(x).endswith(".json")]
            for name, each in self.without.items()
        }
        return {name: scans for name, scans in found.items() if scans}
