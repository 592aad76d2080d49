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


def reads_segments(model: Any, batch: Any) -> Any:
    return model(batch["tokens"][:, :-1]).mean() * batch["segment_ids"].mean()


OF_AN_ARRAY = (
    r"test_fields.py:\d+ reads batch\['tokens'\], but a batch of this run is one array "
    r'of tokens; pass fields=\("tokens", "segment_ids"\) to get a dict of arrays, or '
    r'fields = \["tokens", "segment_ids"\] under \[trainer\]'
)
OF_A_DICT = (
    r"test_fields.py:\d+ reads batch\['segment_ids'\], but the batches of this run "
    "have 'tokens', 'positions'; add 'segment_ids' to fields="
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [(("tokens",), OF_AN_ARRAY), (("tokens", "positions"), OF_A_DICT)],
)
def test_field_that_batches_lack_is_one_sentence(
    tmp_path: Path, fields: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as info:
        trainer(tmp_path, loss_fn=reads_segments, fields=fields)

    assert info.value.__suppress_context__


def test_held_out_loss_that_reads_a_missing_field_is_one_sentence(
    tmp_path: Path,
) -> None:
    held_out = trainer(tmp_path / "a", [Phase(1, 4, 9)]).curriculum

    with pytest.raises(TypeError, match=OF_AN_ARRAY):
        trainer(
            tmp_path / "b",
            loss_fn=reads_segments,
            train_step=lambda model, _, batch: model(batch[:, :-1]).mean(),
            eval_curriculum=held_out,
        )


@pytest.mark.parametrize("fields", [("tokens",), FIELDS])
def test_other_errors_of_a_loss_function_stay(tmp_path: Path, fields: Any) -> None:
    def fails(_: Any, batch: Any) -> Any:
        raise KeyError("segment_ids" if isinstance(batch, dict) else "mine")

    with pytest.raises(KeyError, match=r"segment_ids|mine"):
        trainer(tmp_path, loss_fn=fails, fields=fields)
