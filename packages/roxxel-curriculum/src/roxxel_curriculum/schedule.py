"""The arguments of a curriculum without its corpora, as a file declares them."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `roxxel` reads the types
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from roxxel_curriculum._arguments import (
    checked_count,
    checked_overlap,
    merged_skips,
)
from roxxel_curriculum._documents import check_documents, is_path
from roxxel_curriculum._names import checked_primary
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum.curriculum import Curriculum
from roxxel_curriculum.phase import Phase  # noqa: TC001 - as above
from roxxel_curriculum.policy import Policy, parse_policy

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_format import TokenReader

    from roxxel_curriculum._documents import Documents


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

    def __post_init__(self) -> None:
        # `Curriculum` checks these values, too, but only with the corpora.
        checked_count("longest", self.longest)
        checked_count("max_epochs", self.max_epochs)
        checked_overlap(self.overlap)
        merged_skips(self.skips)
        checked_primary(self.primary, ())
        for name, documents in self.without.items():
            check_documents(documents, name)
        for name, policy in self.policies.items():
            parse_policy(policy, name)

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
        """Return the schedule with the paths in `without` relative to a folder."""
        without = {
            name: folder / str(documents) if is_path(documents) else documents
            for name, documents in self.without.items()
        }
        return replace(self, without=without)
