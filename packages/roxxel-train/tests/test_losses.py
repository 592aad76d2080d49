from __future__ import annotations

import json
import math
import operator
from functools import reduce
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._observe.losses import LossMeans

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = st.floats(0, 100, allow_nan=False)


@given(losses=st.lists(LOSSES, min_size=1, max_size=20), cut=st.integers(0, 20))
def test_means_restored_anywhere_are_those_of_an_unbroken_run(
    losses: Sequence[float], cut: int
) -> None:
    whole, broken = LossMeans(), LossMeans()
    for index, loss in enumerate(losses):
        if index == cut:
            broken = LossMeans.from_json(json.loads(json.dumps(broken.to_json())))
        whole.add(loss)
        broken.add(loss)

    assert broken == whole
    # Not sum(): from Python 3.12 on it corrects its rounding, as a run cannot.
    assert whole.row.close() == reduce(operator.add, losses) / len(losses)


def test_closing_one_interval_leaves_the_other_open() -> None:
    means = LossMeans()
    means.add(1.0)
    means.row.close()
    means.add(3.0)

    assert means.row.close() == 3.0
    assert math.isnan(means.row.mean)
    assert means.checkpoint.mean == 2.0


def test_checkpoint_of_version_0_1_starts_a_new_mean_for_checkpoints() -> None:
    means = LossMeans.from_json({"interval": {"loss_sum": 6.0, "steps": 3}})

    assert means.row.mean == 2.0
    assert means.checkpoint.steps == 0
