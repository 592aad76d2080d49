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
from roxxel_format.foreign import FlatTokens
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
def test_an_embedding_with_too_few_rows_is_refused_before_the_run_has_a_folder(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=PROBLEM):
        made(tmp_path, Model(), **options)

    assert not (tmp_path / "run").exists()


def table(model: Any, batch: jax.Array) -> jax.Array:
    """Read other rows instead of the missing ones, so the loss is finite."""
    return model.table[batch].mean()


def test_table_of_a_plain_parameter_is_named_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="but model/table has 11 rows; "):
        made(tmp_path, Model(), loss_fn=table)


def test_source_with_the_greatest_token_says_how_many_rows_suffice(
    tmp_path: Path,
) -> None:
    corpora = [Roxxel(tmp_path / f"{top}.rox") for top in (12, 20)]
    for corpus, top in zip(corpora, (12, 20), strict=True):
        corpus.write([np.arange(99) % (top + 1)], vocab_size=64)
    phase = Phase(2, 2, 9, weights={"self": 0.5, "code": 0.5})
    curriculum = Curriculum(corpora[0], [phase], {"code": corpora[1]})

    with pytest.raises(ValueError, match=r"'code' holds tokens up to 20, .* least 21"):
        made(tmp_path, Model(), curriculum=curriculum)


def test_nan_of_a_token_without_a_row_is_explained(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError) as caught:
        made(tmp_path, Model(VOCABULARY, outputs=ROWS)).run()

    error = caught.value
    assert error.cause == (
        "the batch holds token 12, but the loss indexes 11 values by token, and source "
        "'self' holds tokens up to 12; make the model with a vocabulary of at least 13"
    )
    assert str(error).startswith("step 1: the loss is nan; its batch was row 0: ")
    assert str(error).endswith(f"; {error.cause}")
    assert "learning rate" not in str(error)
    assert str(copy.copy(error)) == str(error)


def test_nan_of_a_corpus_that_records_no_greatest_token_is_explained(
    tmp_path: Path,
) -> None:
    (np.arange(99, dtype=np.uint16) % VOCABULARY).tofile(tmp_path / "flat.bin")
    flat = FlatTokens(tmp_path / "flat.bin", dtype="uint16")

    with pytest.raises(NonFiniteError) as caught:
        made(tmp_path, Model(), curriculum=Curriculum(flat, [Phase(2, 2, 17)])).run()

    assert caught.value.cause == (
        "the batch holds token 12, but model/embed/embedding has 11 rows; "
        "make the model with a vocabulary of at least 13"
    )


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

    made(tmp_path, Model(), loss_fn=changed, phases=[Phase(1, 4, 9)]).run()


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
