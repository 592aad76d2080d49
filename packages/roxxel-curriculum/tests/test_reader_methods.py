"""Readers of another age or another hand: what they accept is looked up once."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    import numpy.typing as npt

PHASES = [Phase(4, 2, 9)]


class Earlier(PositionReader):
    """A reader from before `will_need` had the keyword `documents`."""

    def will_need(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, starts: npt.ArrayLike, length: int
    ) -> None:
        """Record the hint."""
        self.hints.append((np.asarray(starts, np.int64), length))


class Open(PositionReader):
    """A reader that takes any keyword."""

    def will_need(self, starts: npt.ArrayLike, length: int, **more: Any) -> None:
        """Record the hint."""
        assert more == {"documents": True}
        self.hints.append((np.asarray(starts, np.int64), length))


@pytest.mark.parametrize("kind", [Earlier, Open, PositionReader])
def test_hints_reach_a_reader_with_and_without_the_keyword(
    kind: type[PositionReader],
) -> None:
    reader = kind(1000)
    sampler = Curriculum(reader, PHASES).sampler(1, fields=["tokens", "segment_ids"])

    sampler.will_need(0, 2)

    ((starts, length),) = reader.hints
    assert (starts.size, length) == (4, 9)
    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own bytes
    again.will_need(0, 2)


def no_dtype(self: Any, starts: Any, length: int) -> Any: ...


def no_length(self: Any, starts: Any) -> Any: ...


def no_argument(self: Any) -> Any: ...


@pytest.mark.parametrize(
    ("member", "method"),
    [
        ("read", no_dtype),
        ("will_need", no_length),
        ("document_spans", no_length),
        ("with_version", no_argument),
        ("with_check", no_argument),
        ("damaged_tokens", no_argument),
    ],
)
def test_a_method_of_other_arguments_is_an_error_at_construction(
    member: str, method: Any
) -> None:
    kind = type("Odd", (PositionReader,), {member: method})

    with pytest.raises(TypeError, match=f"source 'self' is a Odd, whose {member} does"):
        Curriculum(kind(1000), PHASES)
