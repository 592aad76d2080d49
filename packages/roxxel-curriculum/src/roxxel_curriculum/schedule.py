"""The arguments of a curriculum without its corpora, as a file declares them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_format.scans import Scan

from roxxel_curriculum._arguments import Arguments
from roxxel_curriculum._withdrawn import (
    check_documents,
    is_listed_path,
    is_path,
    paths_in,
)
from roxxel_curriculum.curriculum import Curriculum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from roxxel_format import TokenReader


@dataclass(frozen=True)
class Schedule(Arguments):
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

    def __post_init__(self) -> None:
        super().__post_init__()
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
