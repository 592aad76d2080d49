"""Creates a sampler of the past steps of a run from its state, without a `Curriculum`.

A state has everything that determines the batches before its step. The batches of a run
can therefore be computed from its folder and its corpora, even if the program or the
config of the run has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from roxxel_format import ShardError, TokenReader

from roxxel_curriculum._bind.past import recorded_solution
from roxxel_curriculum._bind.sources import recorded_sources
from roxxel_curriculum._errors import CurriculumError
from roxxel_curriculum.sampler import Sampler
from roxxel_curriculum.state import checked_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from roxxel_curriculum._bind.fields import Field


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
            reads the version that the state records. Sources that give no row before
            the state's step may be absent. None for the plan and the places alone,
            without any corpus: then `windows` works, and what reads tokens or documents
            raises ShardError.
        fields: As for `Curriculum.sampler`.
        check: As for `Curriculum.sampler`.

    Raises:
        StateMismatch: A reader holds other tokens than the recorded source.
        CurriculumError: The state records no steps, or `sources` lacks a source, or is
            None and a source is a part of a corpus, as those of a proxy are.
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
    readers = _unread(past) if sources is None else sources
    solution = recorded_solution(recorded_sources(past, readers), past)
    for each in past["sources"] if sources is None else ():
        if solution.spans[each["name"]].num_spans != each["spans"]:
            raise CurriculumError(
                f"source {each['name']!r} is a part of a corpus, and a state does not "
                "say which; give a reader for each source"
            )
    return Sampler(solution, state["seed"], fields, check, state)


def _unread(state: Mapping[str, Any]) -> dict[str, TokenReader]:
    return {each["name"]: _Unread(each) for each in state["sources"]}


class _Unread(TokenReader):
    """What a state says of a source, without its tokens."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry

    @property
    def num_tokens(self) -> int:
        return self._entry["tokens"]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._entry["dtype"])

    @property
    def tokenizer(self) -> str | None:
        return self._entry["tokenizer"]

    @property
    def fingerprint(self) -> str:
        return self._entry["fingerprint"]

    @property
    def unit(self) -> int | None:
        return self._entry.get("unit")

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        raise self._error()

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        del starts, length, dtype, out
        raise self._error()

    def _error(self) -> ShardError:
        return ShardError(
            f"source {self._entry['name']!r} has no reader here, which its tokens and "
            "documents need; give `sources` to `recorded_sampler`"
        )
