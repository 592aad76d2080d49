"""Natural mistakes with `Trainer`: each is one sentence before the first step."""
# ruff: noqa: ARG005 - a wrong function is recognised by the names of its arguments

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_train import Trainer

from .helpers import Tiny, corpus, loss_fn, mesh_of, pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL, OPTIMIZER = pair()
TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Curriculum:
    folder = tmp_path_factory.mktemp("mistakes")
    return Curriculum(corpus(folder), [Phase(2, 4, 9)])


def wider() -> nnx.Optimizer[Any]:
    """Return the optimizer of another model."""
    return nnx.Optimizer(nnx.Linear(4, 7, rngs=nnx.Rngs(0)), TX, wrt=nnx.Param)


def lora() -> nnx.Optimizer[Any]:
    return nnx.Optimizer(MODEL, TX, wrt=nnx.LoRAParam)


def holding(value: Any) -> dict[str, Any]:
    """Return a model with a further parameter of this value, and its optimizer."""
    model: Any = Tiny(nnx.Rngs(0))
    model.held = nnx.Param(value)
    return {"model": model, "optimizer": nnx.Optimizer(model, TX, wrt=nnx.Param)}


OBJECTS: list[tuple[str, dict[str, Any], str]] = [
    ("optax transformation", {"optimizer": TX}, "optimizer .*nnx.Optimizer"),
    ("learning rate", {"optimizer": 1e-3}, "optimizer is a float.*nnx.Optimizer"),
    ("optimizer first", {"model": OPTIMIZER, "optimizer": MODEL}, "model first"),
    (
        "parameter of a tree",
        holding({"a": jnp.ones(3), "b": jnp.ones(3)}),
        "model/held .*dict.*nnx.List",
    ),
    ("no optimizer", {"optimizer": None}, "optimizer is None.*nnx.Optimizer"),
    (
        "ModelAndOptimizer",
        {"optimizer": nnx.ModelAndOptimizer(MODEL, TX)},
        "optimizer is a ModelAndOptimizer; .*nnx.Optimizer\\(model",
    ),
    (
        "optimizer of another model",
        {"optimizer": wider()},
        "for another model; make",
    ),
    ("optimizer of no parameter", {"optimizer": lora()}, "LoRAParam.*nnx.Param"),
    (
        "optimizer that asks for a function",
        {"optimizer": nnx.Optimizer(MODEL, optax.lbfgs(), wrt=nnx.Param)},
        "^the optimizer raises .*value_fn(?!.*batch).*train_step",
    ),
    ("model class", {"model": Tiny}, "the class Tiny.*Tiny\\("),
    ("Linen model", {"model": linen.Dense(3)}, "Linen.*nnx.bridge.ToNNX"),
    ("dict of arrays", {"model": {"w": jnp.ones(3)}}, "model is a dict.*NNX module"),
    (
        "factory with an optimizer",
        {"model": pair},
        "omit the argument optimizer",
    ),
    (
        "factory of arguments",
        {"model": lambda rngs: pair(), "optimizer": None},
        r"model takes \(rngs\).*partial",
    ),
    (
        "factory of a model alone",
        {"model": lambda: Tiny(nnx.Rngs(0)), "optimizer": None},
        r"returned a Tiny.*\(model, nnx.Optimizer\)",
    ),
    (
        "factory with an optax transformation",
        {"model": lambda: (Tiny(nnx.Rngs(0)), TX), "optimizer": None},
        "second value.*nnx.Optimizer",
    ),
]


def scalar(model: Any, batch: Any) -> Any:
    return model(batch[:, :-1]).mean()


def branches(model: Any, batch: Any) -> Any:
    loss = scalar(model, batch)
    return loss if loss > 0 else -loss


def to_numpy(model: Any, batch: Any) -> Any:
    return scalar(model, batch) + float(np.asarray(batch).mean())


def of_global_model(_: Any, batch: Any) -> Any:
    return OTHER.out(OTHER.embed(batch)).mean()


def dropping_global_model(_: Any, batch: Any) -> Any:
    return OTHER(batch).mean()


def swapped(batch: Any, model: Any) -> Any:
    return model(batch[:, :-1]).mean()


def swapped_call(batch: Any, model: Any) -> Any:
    return model(batch).mean()


def shape_of_batch(model: Any, batch: Any) -> Any:
    return model(batch["tokens"]).mean() / batch.shape[0]


def pair_of_batch(model: Any, batch: Any) -> Any:
    inputs, targets = batch
    return model(inputs).mean() + targets.mean()


def other_names(model: Any, batch: Any) -> Any:
    return model(batch["input_ids"]).mean()


def attribute(model: Any, batch: Any) -> Any:
    return model(batch.tokens).mean()


def selected(model: Any, batch: Any) -> Any:
    logits = model(batch)
    return logits[batch > 0].mean()


def up_to_a_token(model: Any, batch: Any) -> Any:
    return sum(scalar(model, batch) for _ in range(batch.max()))


def without_gradient(model: Any, batch: Any) -> Any:
    return jax.lax.stop_gradient(scalar(model, batch))


def longer_than_targets(model: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch), batch[:, 1:]
    ).mean()


def targets_with_fields(model: Any, batch: Any) -> Any:
    logits = model(batch["tokens"])
    return (logits.max(-1) - batch["tokens"][:, 1:]).mean()


def of_another_width(model: Any, batch: Any) -> Any:
    return (model(batch) @ jnp.ones((7, 2))).mean()


OTHER = Tiny(nnx.Rngs(1))
FIELDS = ("tokens", "segment_ids")
PLACE = r"test_mistakes.py:\d+ "

FUNCTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("logits", {"loss_fn": lambda m, b: m(b)}, r"loss_fn .*shape \(4, 9, 13\)"),
    ("no return", {"loss_fn": lambda m, b: None}, "loss_fn .*NoneType"),
    ("integer loss", {"loss_fn": lambda m, b: b.sum()}, "loss_fn .*int32"),
    (
        "argument too many",
        {"loss_fn": lambda model, batch, rng: 0},
        r"\(model, batch, rng\).*loss_fn\(model, batch\).*partial",
    ),
    ("argument too few", {"loss_fn": lambda batch: 0}, r"loss_fn\(model, batch\)"),
    ("model as loss_fn", {"loss_fn": MODEL}, r"loss_fn takes \(tokens"),
    ("swapped arguments", {"loss_fn": swapped}, PLACE + r".*loss_fn\(model, batch\)"),
    ("swapped, called", {"loss_fn": swapped_call}, PLACE + r".*\(model, batch\)"),
    (
        "a loss of optax alone",
        {"loss_fn": optax.softmax_cross_entropy_with_integer_labels},
        r"^the function raises .* Tiny.*loss_fn\(model, batch\)",
    ),
    ("a branch on the loss", {"loss_fn": branches}, PLACE + ".*jax.debug.print"),
    ("NumPy", {"loss_fn": to_numpy}, PLACE + ".*jax.debug.print"),
    ("global model", {"loss_fn": of_global_model}, "of another model"),
    (
        "global model with dropout",
        {"loss_fn": dropping_global_model},
        r"helpers.py:\d+ .*global model.*argument",
    ),
    (
        "fields with a loss that slices",
        {"fields": FIELDS},
        r'helpers.py:\d+ .*batch\["tokens"\]',
    ),
    (
        "fields with a loss that asks for a shape",
        {"fields": FIELDS, "loss_fn": shape_of_batch},
        PLACE + r'.*batch\["tokens"\]',
    ),
    ("a batch as a pair", {"loss_fn": pair_of_batch}, PLACE + r".*batch\[:, 1:\]"),
    ("names of others", {"loss_fn": other_names}, PLACE + r".*batch\[:, :-1\]"),
    (
        "names of others with fields",
        {"loss_fn": other_names, "fields": FIELDS},
        PLACE + r".*'segment_ids'.*batch\[\"tokens\"\]\[:, :-1\]",
    ),
    (
        "attribute of a batch",
        {"loss_fn": attribute},
        PLACE + r".* attribute .?tokens.*int32\[4, 9\].*fields",
    ),
    (
        "logits longer than the targets",
        {"loss_fn": longer_than_targets},
        PLACE + r".*4, 8.*int32\[4, 9\]: use batch\[:, :-1\] as inputs",
    ),
    (
        "logits longer than the targets, with fields",
        {"loss_fn": targets_with_fields, "fields": FIELDS},
        PLACE + r""".*'tokens' int32\[4, 9\].*batch\["tokens"\]\[:, 1:\]""",
    ),
    (
        "arrays that do not fit",
        {"loss_fn": of_another_width},
        PLACE + r".*13.*7.*batch is one array of tokens, int32\[4, 9\]",
    ),
    ("boolean mask", {"loss_fn": selected}, PLACE + r".*jnp.where\(mask"),
    ("range of an array", {"loss_fn": up_to_a_token}, PLACE + r".*range\(\)"),
    ("no gradient", {"loss_fn": without_gradient}, "without a gradient.*stop_gradient"),
    ("eval_fn of two", {"eval_fn": lambda m, b: 0}, r"eval_fn\(state\)"),
    ("train_step of two", {"train_step": lambda m, b: 0}, r"train_step\(model, opt"),
    (
        "train_step that returns the pair",
        {"train_step": lambda m, o, b: (m, o)},
        "train_step returned the loss as a Tiny",
    ),
    ("no function", {"loss_fn": None}, "loss_fn and train_step are both None"),
]


def arguments(of: Curriculum) -> list[tuple[dict[str, Any], str]]:
    """Return arguments of a wrong type or value, and what the sentence must name."""
    return [
        ({"curriculum": [Phase(2, 4, 9)]}, "curriculum is a list.*Curriculum"),
        ({"curriculum": of.primary_streamer}, r"Roxxel.*Curriculum\("),
        ({"curriculum": (x for x in ())}, "curriculum is a generator.*Curriculum"),
        ({"curriculum": of.sampler(0)}, "curriculum is a Sampler.*Curriculum"),
        ({"eval_curriculum": of.primary_streamer}, "eval_curriculum is a Roxxel"),
        ({"log_every": -1}, "log_every .*-1"),
        ({"checkpoint_every": "100"}, "checkpoint_every .*'100'"),
        ({"grad_accum_steps": 3}, "grad_accum_steps=3"),
        ({"fields": "tokens"}, "fields must be a list.*'tokens'"),
        ({"seed": "0"}, "seed.*'0'"),
        ({"seed": jax.random.key(0)}, "seed.*integer.*PRNGKeyArray"),
        ({"seed": nnx.Rngs(0)}, "seed.*integer.*Rngs"),
        ({"eval_every": 5}, "eval_every=5.*eval_curriculum or eval_fn"),
        ({"batch_size": 4}, "'batch_size'; give it to a Phase"),
        ({"leraning": 4}, r"'leraning'; help\(Trainer\)"),
        ({"keep_every": "six"}, "keep_every must be .*'six'"),
        ({"keep_every": "0.0h"}, "keep_every must be .*'0.0h'"),
        ({"logger": logging.getLogger()}, "logger.*roxxel_train"),
        ({"mesh": [1]}, "mesh is a list"),
        ({"save_path": 7}, "save_path must be .*, got 7"),
        ({"log_to": None}, "log_to must be a list, .*, got None"),
        ({"curriculum": "w_*.rox"}, r"curriculum is a str.*Curriculum\(corpus, "),
        ({"timeout": "1h"}, "timeout .*'1h'"),
        ({"model_sharding": ["rows"]}, "names of the axes .*'data'.*'rows'"),
        ({"model_sharding": ["data"] * 2}, "axes .*once.*'data', 'data'"),
    ]


def given(curriculum: Curriculum, /, **options: Any) -> Callable[[], Trainer]:
    model, optimizer = pair()
    defaults: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "curriculum": curriculum,
        "loss_fn": loss_fn,
        "mesh": mesh_of(1),
    }
    return functools.partial(Trainer, **(defaults | options))


def check(make: Callable[[], Trainer], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as info:
        make()
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [each[1:] for each in OBJECTS],
    ids=[each[0] for each in OBJECTS],
)
def test_a_wrong_model_or_optimizer_is_one_sentence(
    curriculum: Curriculum, options: dict[str, Any], message: str
) -> None:
    check(given(curriculum, **options), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [each[1:] for each in FUNCTIONS],
    ids=[each[0] for each in FUNCTIONS],
)
def test_a_wrong_function_is_one_sentence(
    curriculum: Curriculum, options: dict[str, Any], message: str
) -> None:
    check(given(curriculum, **options), message)


@pytest.mark.parametrize("index", range(25))
def test_a_wrong_argument_is_one_sentence(curriculum: Curriculum, index: int) -> None:
    options, message = arguments(curriculum)[index]
    check(given(curriculum, **options), message)


def test_a_branch_from_a_folder_without_a_checkpoint_says_what_it_needs(
    curriculum: Curriculum, tmp_path: Path
) -> None:
    parent = f"{tmp_path / 'nowhere'}@3"

    with pytest.raises(FileNotFoundError, match=r"branch_from=.*@3.*the folder"):
        given(curriculum, branch_from=parent, save_path=tmp_path / "run")()


def test_a_parameter_without_a_gradient_is_said(curriculum: Curriculum) -> None:
    """Weight decay would shrink it at every step, and nothing would show why."""

    def frozen(model: Any, batch: Any) -> Any:
        return model.out(jax.lax.stop_gradient(model.embed(batch))).mean()

    notes = given(curriculum, loss_fn=frozen)().preflight().notes

    (note,) = (note for note in notes if "no gradient" in note)
    assert "model/embed/embedding no gradient" in note
    assert "wrt" in note


def test_evaluation_mode_is_said(curriculum: Curriculum, tmp_path: Path) -> None:
    model, optimizer = pair()
    options: dict[str, Any] = {"model": model, "optimizer": optimizer}
    model.eval()

    one = given(curriculum, save_path=tmp_path / "run", **options)()
    one.run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert (
        "WARNING the model is in evaluation mode (dropout: deterministic=True)" in log
    )
    assert "model.train()" in log
    notes = one.preflight().notes
    assert any("evaluation mode" in note for note in notes)
    assert not any("no gradient" in note for note in notes)
    model.train()
    given(curriculum, save_path=tmp_path / "other", **options)().run()
    assert "evaluation mode" not in (tmp_path / "other" / "system.log").read_text()


def test_an_array_that_is_no_variable_is_said(curriculum: Curriculum) -> None:
    """It is saved like a parameter, so nothing else would show that it never moves."""

    class Scaled(nnx.Module):
        def __init__(self) -> None:
            self.inner, _ = pair()
            self.scales = nnx.List([jnp.ones(())])
            self.trained = jnp.ones(())
            self.steps = jnp.arange(3)
            self.table = nnx.Variable(jnp.ones(3))

        def __call__(self, tokens: Any) -> Any:
            return self.inner(tokens) * self.scales[0] * self.trained

    model = Scaled()
    wrt = nnx.Any(nnx.Param, nnx.PathContains("trained"))
    optimizer = nnx.Optimizer(model, TX, wrt=wrt)
    notes = given(curriculum, model=model, optimizer=optimizer)().preflight().notes

    (said,) = (note for note in notes if "nnx.Variable" in note)
    assert said.startswith("model/scales/0 is ")
    assert "nnx.Param" in said
