from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel

from .helpers import (
    by_mask,
    corpus,
    loss_fn,
    mesh_of,
    pair,
    rows,
    trainer,
    values,
)

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


class Unigram(nnx.Module):
    """Predicts every token from one vector of logits, whatever came before."""

    def __init__(self) -> None:
        self.logits = nnx.Param(jnp.zeros(256))


def loss_of_completions(model: Any, batch: Any) -> Any:
    losses = -jax.nn.log_softmax(model.logits[...])[batch["tokens"][:, 1:]]
    mask = batch["loss_mask"][:, 1:].astype(jnp.float32)
    return (losses * mask).sum() / mask.sum(), {"loss_weight": mask.sum()}


def test_run_on_prompts_and_completions_learns_the_completions_alone(
    tmp_path: Path,
) -> None:
    pairs = [{"prompt": "ab"[n % 2] * 5, "completion": "yz" * 2} for n in range(8)]
    target = str(tmp_path / "chats_*.rox")
    Roxxel(target).write(pairs, separator=0, prompt="prompt", completion="completion")
    model = Unigram()
    one = trainer(
        tmp_path,
        pair=(model, nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)),
        curriculum=Curriculum(Roxxel(target), [Phase(1, 4, 20)]),
        loss_fn=loss_of_completions,
        fields=("tokens", "loss_mask"),
        grad_accum_steps=2,
    )

    one.run()

    # A step from equal logits adds the share of each target and subtracts 1 / 256.
    learned = np.asarray(model.logits[...]) + 1 / 256
    batch = one.sampler.batch(0)
    targets, mask = batch["tokens"][:, 1:], batch["loss_mask"][:, 1:].astype(bool)
    counts = np.bincount(targets[mask], minlength=256)
    assert learned == pytest.approx(counts / counts.sum(), abs=1e-6)
    assert set(np.flatnonzero(counts)) == {0, ord("y"), ord("z")}
    assert set(targets[~mask].tolist()) == {ord("a"), ord("b")}
    (row,) = rows(tmp_path)
    assert row["loss_weight"] == counts.sum()


def unweighted(model: Any, batch: Any) -> Any:
    return by_mask(model, batch)[0]


def test_parts_of_a_masked_loss_without_a_weight_are_refused(tmp_path: Path) -> None:
    """A part of which no token is learned would count as a loss of 0."""
    options: dict[str, Any] = {"fields": ("tokens", "loss_mask"), "grad_accum_steps": 2}

    with pytest.raises(ValueError, match=r"grad_accum_steps=2 .*loss_weight"):
        trainer(tmp_path / "a", loss_fn=unweighted, **options)

    trainer(tmp_path / "b", loss_fn=by_mask, **options)
    trainer(tmp_path / "c", loss_fn=lambda m, b: loss_fn(m, b["tokens"]), **options)


def test_held_out_batches_of_a_masked_loss_need_its_weight(tmp_path: Path) -> None:
    def built(folder: str, steps: int, **options: Any) -> None:
        trainer(
            tmp_path / folder,
            [Phase(1, 4, 9)],
            fields=("tokens", "loss_mask"),
            eval_curriculum=Curriculum(corpus(tmp_path), [Phase(steps, 4, 9)]),
            **options,
        )

    with pytest.raises(ValueError, match=r"eval_curriculum .*loss_weight"):
        built("a", 2, loss_fn=unweighted)

    built("b", 2, loss_fn=by_mask)
    built("c", 1, loss_fn=unweighted)


def test_a_mask_that_a_run_does_not_read_is_named(tmp_path: Path) -> None:
    target = tmp_path / "chats_*.rox"
    Roxxel(target).write([[1, 2, 3] * 9] * 8)
    corpus = Roxxel(target)
    corpus.write_column("loss_mask", np.ones(corpus.num_tokens, np.uint8))

    trainer(tmp_path, curriculum=Curriculum(Roxxel(target), [Phase(1, 4, 9)])).run()

    warning = "self has a column loss_mask that this run does not read"
    assert warning in (tmp_path / "run" / "system.log").read_text()


def test_a_mask_that_is_younger_than_the_run_is_named(tmp_path: Path) -> None:
    target = tmp_path / "chats_*.rox"
    corpus = Roxxel(target)
    corpus.write([[1, 2, 3] * 9] * 8)
    options: dict[str, Any] = {"fields": ("tokens", "loss_mask"), "loss_fn": by_mask}
    trainer(tmp_path, curriculum=Curriculum(corpus, [Phase(1, 4, 9)]), **options).run()
    corpus.write_column("loss_mask", np.zeros(corpus.num_tokens, np.uint8))

    longer = Curriculum(Roxxel(target), [Phase(2, 4, 9)])
    resumed = trainer(tmp_path, curriculum=longer, **options)
    resumed.run()

    assert resumed.sampler.batch(1)["loss_mask"].all()
    said = (tmp_path / "run" / "system.log").read_text()
    assert "the column was written after the run had read from the corpus" in said
    assert "begin a new run" in said


def test_unknown_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weather"):
        trainer(tmp_path, fields=("tokens", "weather"))


def reads_segments(model: Any, batch: Any) -> Any:
    return model(batch["tokens"][:, :-1]).mean() * batch["segment_ids"].mean()


OF_AN_ARRAY = (
    r"test_fields.py:\d+ raises TypeError \(.*tokens.*\); .*"
    r"batch is one array of tokens, int32\[4, 9\].*"
    r'fields = \["tokens", "segment_ids"\] under \[trainer\]'
)
OF_A_DICT = (
    r"test_fields.py:\d+ raises KeyError \('segment_ids'\); .*batch is a dict of "
    r"arrays \('tokens' int32\[4, 9\], 'positions' int32\[4, 9\]\).*fields= names"
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [(("tokens",), OF_AN_ARRAY), (("tokens", "positions"), OF_A_DICT)],
)
def test_field_that_batches_lack_is_one_sentence(
    tmp_path: Path, fields: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        trainer(tmp_path, loss_fn=reads_segments, fields=fields)


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


def test_an_error_of_a_loss_function_itself_is_the_cause(tmp_path: Path) -> None:
    def fails(_model: Any, _batch: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(TypeError, match=r"test_fields.py:\d+ raises KeyError") as info:
        trainer(tmp_path, loss_fn=fails)

    assert isinstance(info.value.__cause__, KeyError)


def test_an_error_that_is_no_mistake_with_arrays_stays(tmp_path: Path) -> None:
    def fails(_model: Any, _batch: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine"):
        trainer(tmp_path, loss_fn=fails)
