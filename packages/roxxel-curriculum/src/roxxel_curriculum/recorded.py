"""Creates a sampler of the past steps of a run from its state, without a `Curriculum`.

A state has everything that determines the batches before its step. The batches of a run
can therefore be computed from its folder and its corpora, even if the program or the
config of the run has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from roxxel_curriculum._bind.past import recorded_solution
from roxxel_curriculum._bind.sources import recorded_sources
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._names import checked_primary
from roxxel_curriculum._order import PRIMARY
from roxxel_curriculum.sampler import Sampler
from roxxel_curriculum.state import checked_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._bind.fields import Field


def recorded_sampler(
    state: Mapping[str, Any],
    sources: Mapping[str, TokenReader],
    fields: Iterable[Field] = ("tokens",),
    check: Literal["headers", "blocks"] = "headers",
    *,
    primary: str = PRIMARY,
) -> Sampler:
    """Return the sampler of the steps before the step of a state.

    Its batches are those that the run has read, whatever a curriculum declares now. For
    steps after the state's step, use `Curriculum.sampler(state=state)`.

    Args:
        state: What `Sampler.state` returned for the run; may be read from JSON.
        sources: A reader for each source of the run, by name; `"self"` is the primary.
            A reader with versions reads the version that the state records. Sources
            that give no row before the state's step may be absent.
        fields: As for `Curriculum.sampler`.
        check: As for `Curriculum.sampler`.
        primary: Name of the primary; see `Curriculum`. States do not record the name.

    Raises:
        StateMismatch: A reader holds other tokens than the recorded source.
        CurriculumError: The state records no steps, or `sources` lacks a source.
        TypeError: A source is not a token reader.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> web = PositionReader(10_000)
        >>> sampler = Curriculum(web, [Phase(9, 4, 129)]).sampler(seed=42)
        >>> past = recorded_sampler(sampler.state(5), {"self": web})
        >>> past.total_steps, bool((past.batch(4) == sampler.batch(4)).all())
        (5, True)
    """
    primary = checked_primary(primary, ())
    past = checked_state(state, primary)
    if not state["step"]:
        raise CurriculumError(
            "this state is at step 0, so it records no batches; "
            "give the state of a later step, or declare a Curriculum"
        )
    solution = recorded_solution(recorded_sources(past, sources, primary), past)
    return Sampler(solution, state["seed"], fields, check, state)
