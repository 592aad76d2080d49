"""A model without a row for every token of the data is named, a right model never."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import NonFiniteError

from .helpers import VOCABULARY, trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_train import Trainer

ROWS = 11
PROBLEM = (
    "source 'self' holds tokens up to 12, but model/embed/embedding has 11 rows; "
    "make the model with a vocabulary of at least 13"
)


class Model(nnx.Module):
    """Embeds tokens and positions; both tables have fewer rows than tokens exist."""

    def __init__(self, rows: int = ROWS, outputs: int = VOCABULARY) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(rows, 4, rngs=rngs)
        self.positions = nnx.Embed(8, 4, rngs=rngs)
        self.table = nnx.Param(jnp.ones((ROWS, 4)))
        self.out = nnx.Linear(4, outputs, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        at = self.positions(jnp.arange(tokens.shape[1]) % 8)
        return self.out(self.embed(tokens) + at)


def loss_fn(model: Any, batch: Any) -> jax.Array:
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def made(
    folder: Path, model: nnx.Module, phases: list[Phase] | None = None, **options: Any
) -> Trainer:
    options = {"loss_fn": loss_fn, **options}
    pair = model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    return trainer(folder, phases, pair=pair, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"grad_accum_steps": 2}, {"fields": ("tokens", "positions")}],
    ids=["plain", "accumulated", "fields"],
)
def test_preflight_names_an_embedding_with_too_few_rows(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    found = made(tmp_path, Model(), **options).preflight()

    assert found.problems == (PROBLEM,)
    assert str(found).splitlines()[-2:] == [f"problem: {PROBLEM}", "not ready"]


def table(model: Any, batch: jax.Array) -> jax.Array:
    """Read other rows instead of the missing ones, so the loss is finite."""
    return model.table[batch].mean()


def test_table_of_a_plain_parameter_is_named_too(tmp_path: Path) -> None:
    [problem] = made(tmp_path, Model(), loss_fn=table).preflight().problems

    assert "but model/table has 11 rows; " in problem


def test_start_of_a_run_warns_of_a_table_with_too_few_rows(tmp_path: Path) -> None:
    made(tmp_path, Model(), loss_fn=table).run()

    log = (tmp_path / "run" / "system.log").read_text()
    problem = PROBLEM.replace("embed/embedding", "table")
    assert log.count(f"WARNING {problem}\n") == 1


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        (Model(), "model/embed/embedding has 11 rows"),
        (
            Model(VOCABULARY, outputs=ROWS),
            "the loss indexes 11 values by token",
        ),
    ],
    ids=["embedding", "output"],
)
def test_nan_of_a_token_without_a_row_is_explained(
    tmp_path: Path, model: nnx.Module, lookup: str
) -> None:
    with pytest.raises(NonFiniteError) as caught:
        made(tmp_path, model).run()

    error = caught.value
    assert error.cause == (
        f"the batch holds token 12, but {lookup}, and source 'self' holds tokens up to "
        "12; make the model with a vocabulary of at least 13"
    )
    assert str(error).startswith("step 1: the loss is nan; its batch was row 0: ")
    assert str(error).endswith(f"; {error.cause}")
    assert "learning rate" not in str(error)
    assert str(copy.copy(error)) == str(error)


def test_other_nan_is_explained_as_before(tmp_path: Path) -> None:
    def nan(model: Any, batch: Any) -> jax.Array:
        return loss_fn(model, batch) * jnp.nan

    with pytest.raises(NonFiniteError, match="or lower the learning rate") as caught:
        made(tmp_path, Model(VOCABULARY), loss_fn=nan).run()

    assert caught.value.cause is None


def hashed(tokens: jax.Array) -> jax.Array:
    return tokens % ROWS


def clipped(tokens: jax.Array) -> jax.Array:
    return jnp.minimum(tokens, ROWS - 1)


def masked(tokens: jax.Array) -> jax.Array:
    return jnp.where(tokens < ROWS, tokens, 0)


@pytest.mark.parametrize("change", [hashed, clipped, masked])
def test_rows_for_numbers_that_are_computed_from_tokens_are_enough(
    tmp_path: Path, change: Callable[[jax.Array], jax.Array]
) -> None:
    def changed(model: Any, batch: jax.Array) -> jax.Array:
        return model(change(batch)).mean()

    one = made(tmp_path, Model(), loss_fn=changed, phases=[Phase(1, 4, 9)])

    assert one.preflight().ok
    one.run()
    assert "holds tokens up to" not in (tmp_path / "run" / "system.log").read_text()


def test_model_with_a_row_for_every_token_has_no_problem(tmp_path: Path) -> None:
    assert made(tmp_path, Model(VOCABULARY)).preflight().ok


@pytest.mark.parametrize(
    "documents",
    [np.linspace(0, 100, 99, dtype=np.float32), np.arange(-99, 0, dtype=np.int16)],
    ids=["floats", "negative"],
)
def test_data_without_tokens_beyond_the_rows_has_no_problem(
    tmp_path: Path, documents: np.ndarray[Any, Any]
) -> None:
    def indexed(model: Any, batch: jax.Array) -> jax.Array:
        return model.table[batch.astype(jnp.int32)].mean()

    data = Roxxel(tmp_path / "other.rox")
    data.write([documents], dtype=documents.dtype)
    curriculum = Curriculum(data, [Phase(2, 2, 9)])

    one = made(tmp_path, Model(), loss_fn=indexed, curriculum=curriculum)

    assert one.preflight().ok
