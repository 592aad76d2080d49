"""Which bytes the quickstart reads when: short contexts first, then long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_curriculum import Curriculum, CurriculumError, Phase

from roxxel.quickstart import settings
from roxxel.quickstart.folder import QuickstartError

if TYPE_CHECKING:
    from roxxel.quickstart.data import Corpora


def make_curriculum(
    corpora: Corpora, schedule: settings.Schedule, steps: int
) -> Curriculum:
    """Return the two phases: short context first, then long.

    Args:
        corpora: What to read.
        schedule: Where the phases meet.
        steps: Steps of both together.

    Raises:
        QuickstartError: The corpora are too small for so many steps, or at all.
    """
    try:
        return _curriculum(corpora, schedule, steps)
    except CurriculumError as error:
        raise QuickstartError(f"--steps {steps}: {error}") from error


def _curriculum(
    corpora: Corpora, schedule: settings.Schedule, steps: int
) -> Curriculum:
    return Curriculum(
        primary_streamer=corpora.library,
        phases=make_phases(schedule, steps),
        mix_streamers={"docstrings": corpora.docstrings},
        max_epochs=settings.MAX_EPOCHS,
    )


def make_phases(schedule: settings.Schedule, steps: int) -> list[Phase]:
    """Return the two phases of a run of so many steps."""
    return [
        Phase(
            steps=schedule.boundary,
            batch_size=settings.SHORT_BATCH,
            seq_len=settings.SHORT + 1,  # and the byte that follows the last
            weights=settings.SHORT_WEIGHTS,
        ),
        Phase(
            steps=steps - schedule.boundary,
            batch_size=settings.LONG_BATCH,
            seq_len=settings.LONG + 1,
            weights=settings.LONG_WEIGHTS,
        ),
    ]
