from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax
import pytest
from roxxel_curriculum import Phase

from .helpers import mesh_of, pair, rows, trainer, values

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import ModelState

FIELDS = ("tokens", "segment_ids", "positions")


def loss_inside_documents(model: Any, batch: Any) -> Any:
    """Return the mean loss of the tokens that follow a token of their own document."""
    assert {name: x.dtype for name, x in batch.items()} == dict.fromkeys(
        FIELDS, jnp.int32
    )
    tokens, segments = batch["tokens"], batch["segment_ids"]
    inside = (segments[:, 1:] == segments[:, :-1]) & (batch["positions"][:, 1:] > 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    weight = inside.sum()
    return (losses * inside).sum() / weight, {"loss_weight": weight}


def test_batches_of_several_fields_train_shard_accumulate_and_resume(
    tmp_path: Path,
) -> None:
    def trips(state: ModelState) -> None:
        if int(state.step[...]) == 2:
            raise RuntimeError("it tripped")

    def started(folder: str, **options: Any) -> Any:
        return trainer(
            tmp_path / folder,
            [Phase(5, 4, 9)],
            loss_fn=loss_inside_documents,
            fields=FIELDS,
            mesh=mesh_of(2),
            grad_accum_steps=2,
            log_every=1,
            **options,
        )

    unbroken = started("a")
    unbroken.run()
    with pytest.raises(RuntimeError, match="it tripped"):
        started("b", eval_fn=trips, eval_every=1).run()
    resumed = started("b", pair=pair(seed=5))

    assert resumed.run().start_step == 2
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    assert values(resumed) == values(unbroken)
    expected = [
        int((batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]).sum())
        for batch in map(resumed.curriculum.sampler(0, fields=FIELDS).batch, range(5))
    ]
    assert [row["loss_weight"] for row in rows(tmp_path / "a")] == expected
    assert len(set(expected)) > 1


def test_unknown_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weather"):
        trainer(tmp_path, fields=("tokens", "weather"))
