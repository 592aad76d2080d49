"""Make the sampler and the plan of a run's past steps from its state alone.

A state has everything that determines the batches before its step. The batches of a run
can therefore be computed from its folder and its corpora, even if the program or the
config of the run has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from roxxel_curriculum._bind.past import recorded, recorded_versions
from roxxel_curriculum._bind.sources import at_version
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum._plan.plan import make_plan
from roxxel_curriculum.sampler import Sampler
from roxxel_curriculum.state import checked_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_format import TokenReader

    from roxxel_curriculum._bind.fields import Field
    from roxxel_curriculum._plan.plan import Plan


def recorded_plan(state: Mapping[str, Any]) -> Plan:
    """Return the plan of the steps before the step of a state; opens no corpus.

    A state does not record padding, doubts about tokenizers, and why a run ends early,
    so the plan has none of them.

    Args:
        state: What `Sampler.state` returned for the run; may be read from JSON.

    Raises:
        StateMismatch: The state was modified.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> sampler = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(42)
        >>> plan = recorded_plan(sampler.state(5))
        >>> plan.total_steps, plan.seed
        (5, 42)
    """
    past = checked_state(state)
    return make_plan(recorded(past), past["seed"])


def recorded_reader(
    state: Mapping[str, Any], name: str, reader: TokenReader
) -> TokenReader:
    """Return a reader of a source at the version that the run of a state reads.

    Args:
        state: As for `recorded_sampler`.
        name: Name of the source.
        reader: A reader of the corpus, at any version.

    Raises:
        StateMismatch: The state was modified.
        KeyError: The run has no such source.
        ShardError: The corpus lacks the version.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> web = PositionReader(10_000)
        >>> state = Curriculum(web, [Phase(9, 4, 129)]).sampler(seed=42).state(5)
        >>> recorded_reader(state, "self", web).num_tokens
        10000
    """
    return at_version(reader, recorded_versions(checked_state(state))[name])


def recorded_sampler(
    state: Mapping[str, Any],
    sources: Mapping[str, TokenReader] | None,
    fields: Iterable[Field] = ("tokens",),
    check: Literal["headers", "blocks"] = "headers",
) -> Sampler:
    """Return the sampler of the steps before the step of a state.

    Its batches are those that the run has read, whatever a curriculum declares now. For
    steps after the state's step, use `Curriculum.sampler(state=state)`.

    Args:
        state: What `Sampler.state` returned for the run; may be read from JSON.
        sources: A reader for each source of the run, by name. A reader with versions
            reads the version that the state records. Sources from which
            the run has read no row before this step may be absent. With None, the
            sampler knows plan and places, but opens no corpus: `windows` works, and any
            read of tokens or documents raises ShardError.
        fields: As for `Curriculum.sampler`.
        check: As for `Curriculum.sampler`.

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
    past = checked_state(state)
    if not state["step"]:
        raise CurriculumError(
            "this state is at step 0, so it records no batches; "
            "give the state of a later step, or declare a Curriculum"
        )
    solution = recorded(past, sources)
    return Sampler(solution, state["seed"], fields, check)
