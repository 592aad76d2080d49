"""The type of a batch follows from the fields.

`assert_type` does nothing when it runs: pyright checks it, in the session `types`.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader

CURRICULUM = Curriculum(PositionReader(10_000), [Phase(9, batch_size=4, seq_len=65)])


def test_tokens_alone_make_an_array() -> None:
    sampler = CURRICULUM.sampler(seed=0)

    assert_type(sampler.batch(0), npt.NDArray[Any])
    assert_type(sampler.rows(0, [1]), npt.NDArray[Any])
    assert isinstance(sampler.batch(0), np.ndarray)


def test_more_fields_make_a_dict_of_arrays() -> None:
    sampler = CURRICULUM.sampler(seed=0, fields=("tokens", "positions", "source"))

    assert_type(sampler.batch(0), dict[str, npt.NDArray[Any]])
    assert isinstance(sampler.batch(0), dict)


def test_a_list_of_fields_tells_a_type_checker_nothing() -> None:
    sampler = CURRICULUM.sampler(seed=0, fields=["tokens", "positions"])

    assert_type(sampler.batch(0), Any)
    assert isinstance(sampler.batch(0), dict)
