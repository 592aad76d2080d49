"""Checkpoints of an older model: leaves that fit are restored, others are named."""

from __future__ import annotations

import pickle
import tempfile
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_ckpt import (
    Checkpointer,
    CheckpointMismatchError,
    RestoreReport,
)

from .helpers import content, make, save_all, train

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    """Return a trained model of two blocks and its optimizer."""
    model, optimizer = make(seed=0, depth=2)
    train(model, optimizer, range(3))
    return model, optimizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trained: tuple[Any, Any]) -> Path:
    """Return a folder with the trained model as step 5."""
    folder = tmp_path_factory.mktemp("run")
    with Checkpointer(folder, *trained) as saving:
        saving.save(5)
    return folder


@pytest.fixture(scope="module")
def saved(trained: tuple[Any, Any]) -> dict[str, tuple[str, bytes]]:
    """Return the content of the trained model."""
    return content(*trained)


def test_new_leaves_stay_fresh_and_are_listed(
    folder: Path,
    saved: dict[str, tuple[str, bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = make(seed=1, depth=3)
    fresh = content(model, optimizer)
    reading = Checkpointer(folder, model, optimizer)

    assert reading.restore() == 5

    report, now = reading.report, content(model, optimizer)
    assert report is not None
    assert "model/blocks/2/kernel" in report.new
    assert all("blocks/2/" in name for name in report.new)
    assert set(report.restored) == set(saved)
    assert report.dropped == report.mismatched == ()
    assert {name: now[name] for name in saved} == saved
    assert {name: now[name] for name in report.new} == {
        name: fresh[name] for name in report.new
    }
    assert "model/blocks/2/kernel: not in the checkpoint" in caplog.text


def test_gone_leaves_are_dropped_and_listed(
    folder: Path, saved: dict[str, tuple[str, bytes]]
) -> None:
    model, optimizer = make(seed=1, depth=1)
    reading = Checkpointer(folder, model, optimizer)
    reading.restore()

    assert reading.report is not None
    assert "model/blocks/1/kernel" in reading.report.dropped
    assert "model/blocks/1/kernel: only in the checkpoint" in str(reading.report)
    now = content(model, optimizer)
    assert now == {name: saved[name] for name in now}


def test_strict_refuses_any_difference(folder: Path) -> None:
    for depth, difference in (
        (1, "model/blocks/1/bias: only in the checkpoint"),
        (3, "not in the checkpoint"),
    ):
        model, optimizer = make(depth=depth)
        before = content(model, optimizer)
        with pytest.raises(CheckpointMismatchError, match=difference):
            Checkpointer(folder, model, optimizer).restore(strict=True)
        assert content(model, optimizer) == before


def test_another_shape_is_an_error_that_names_the_leaf(
    folder: Path, saved: dict[str, tuple[str, bytes]]
) -> None:
    model, optimizer = make(seed=1, width=16)
    before = content(model, optimizer)
    reading = Checkpointer(folder, model, optimizer)

    with pytest.raises(
        CheckpointMismatchError,
        match=r"model/blocks/0/bias: float32\[8\] in the checkpoint, float32\[16\] now",
    ) as error:
        reading.restore()
    with pytest.raises(CheckpointMismatchError) as peeked:
        reading.peek(must_fit=True)
    assert str(peeked.value) == str(error.value)
    assert reading.peek() is not None
    assert content(model, optimizer) == before
    message = str(error.value)
    assert message.count("in the checkpoint") == 1  # a whole model is hundreds of lines
    assert "more" in message
    assert "build the model with the saved sizes" in message

    assert reading.restore(on_mismatch="keep") == 5
    now = content(model, optimizer)
    assert now["model/embed/kernel"] == before["model/embed/kernel"]
    assert now["optimizer/step"] == saved["optimizer/step"]
    with pytest.raises(ValueError, match='on_mismatch must be "error" or "keep"'):
        reading.restore(on_mismatch="ignore")  # pyright: ignore[reportArgumentType] - the point


def test_leaves_of_another_shape_are_counted_without_new_ones(folder: Path) -> None:
    live = make(depth=3, width=16)
    reading = Checkpointer(folder, *live)

    with pytest.raises(CheckpointMismatchError) as error:
        reading.restore()
    reading.restore(on_mismatch="keep")

    report = reading.report
    assert report is not None
    assert report.new
    number = len(report.mismatched)
    text = str(error.value)
    assert f"{number} leaves have another shape" in text
    assert f"; and {number - 1} more)" in text


def test_reason_and_remedy_of_a_mismatch_come_apart(folder: Path) -> None:
    with pytest.raises(CheckpointMismatchError) as caught:
        Checkpointer(folder, *make(depth=1)).restore(strict=True)

    sent = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    for error in (caught.value, sent):
        assert str(error) == f"{error.reason}; {error.remedy}"
        assert "model/blocks/1/bias" in error.reason
        assert "strict" in error.remedy


def test_another_dtype_is_an_error_too(tmp_path: Path) -> None:
    def linear(dtype: Any) -> nnx.Linear:
        return nnx.Linear(2, 2, rngs=nnx.Rngs(0), param_dtype=dtype)

    with Checkpointer(tmp_path, linear(jnp.float32)) as saving:
        saving.save(1)

    with pytest.raises(
        CheckpointMismatchError,
        match=r"model/bias: float32\[2\] in the checkpoint, bfloat16\[2\] now",
    ):
        Checkpointer(tmp_path, linear(jnp.bfloat16)).restore()


class Pair(nnx.Module):
    """Two parts with names of the caller's choice."""

    def __init__(self, first: str, second: str, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        setattr(self, first, nnx.Linear(3, 3, rngs=rngs))
        setattr(self, second, nnx.Dict(inner=nnx.Linear(3, 3, rngs=rngs)))


def test_renamed_parts_take_their_moments_along(tmp_path: Path) -> None:
    def pair(first: str, second: str, seed: int) -> tuple[Pair, Any]:
        model = Pair(first, second, seed)
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    old, old_optimizer = pair("encoder", "head", 0)
    with Checkpointer(tmp_path, old, old_optimizer) as saving:
        saving.save(1)
    new, new_optimizer = pair("head", "tail", 1)
    reading = Checkpointer(tmp_path, new, new_optimizer)

    reading.restore(
        strict=True, rename={"encoder": "head", "model/head/inner": "tail/inner"}
    )

    before, after = content(old, old_optimizer), content(new, new_optimizer)
    assert after["model/head/kernel"] == before["model/encoder/kernel"]
    assert after["model/tail/inner/bias"] == before["model/head/inner/bias"]
    mu = "optimizer/opt_state/0/mu"
    assert after[f"{mu}/tail/inner/kernel"] == before[f"{mu}/head/inner/kernel"]
    assert reading.report is not None
    assert reading.report.renamed["model/encoder/bias"] == "model/head/bias"
    with pytest.raises(CheckpointMismatchError, match=r"rename has \['middle'\]"):
        reading.restore(rename={"middle": "tail"})
    with pytest.raises(CheckpointMismatchError, match="rename maps both"):
        reading.restore(rename={"encoder/kernel": "head/inner/kernel"})


def test_a_checkpoint_of_another_model_is_one_sentence(folder: Path) -> None:
    other = nnx.Dict(one=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(
        CheckpointMismatchError, match="no leaf of the checkpoint fits this model"
    ):
        Checkpointer(folder, other).restore()


def test_a_model_alone_gets_an_optimizer_later(tmp_path: Path) -> None:
    model, _ = make(seed=0)
    with Checkpointer(tmp_path, model) as saving:
        save_all(saving, 1)
    fresh, optimizer = make(seed=1)

    reading = Checkpointer(tmp_path, fresh, optimizer)
    reading.restore()

    assert content(fresh) == content(model)
    assert reading.report is not None
    assert all(name.startswith("optimizer/") for name in reading.report.new)


LEAVES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(
        st.lists(st.integers(1, 2), max_size=2).map(tuple),
        st.sampled_from(["float32", "bfloat16"]),
    ),
)


def model_of(leaves: Mapping[str, tuple[tuple[int, ...], str]]) -> nnx.Dict[Any]:
    """Return a model of zeros with these shapes and dtypes, and of one leaf more."""
    zeros = {name: jnp.zeros(shape, dtype) for name, (shape, dtype) in leaves.items()}
    return nnx.Dict({n: nnx.Param(x) for n, x in {**zeros, "z": jnp.ones(())}.items()})


@settings(max_examples=10, deadline=None)
@given(saved=LEAVES, live=LEAVES)
def test_every_leaf_is_in_one_list_of_the_report(
    saved: dict[str, tuple[tuple[int, ...], str]],
    live: dict[str, tuple[tuple[int, ...], str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Checkpointer(folder, model_of(saved)) as saving:
            saving.save(1)
        reading = Checkpointer(folder, model_of(live))
        reading.restore(on_mismatch="keep")

    report = reading.report
    assert report is not None
    mismatched = [name for name, _, _ in report.mismatched]
    of_live = [f"model/{name}" for name in [*live, "z"]]
    of_saved = [f"model/{name}" for name in [*saved, "z"]]
    assert sorted([*report.restored, *report.new, *mismatched]) == sorted(of_live)
    assert sorted([*report.restored, *report.dropped, *mismatched]) == sorted(of_saved)
    equal = {f"model/{name}" for name in saved if saved[name] == live.get(name)}
    assert set(report.restored) == {*equal, "model/z"}
    assert report.is_exact == (saved == live)


def test_a_long_report_is_cut() -> None:
    new = tuple(f"model/{index}" for index in range(50))

    lines = str(RestoreReport(3, (), new)).splitlines()

    assert lines[0].startswith("step 3: 0 restored, 50 new, 0 dropped")
    assert (len(lines), lines[-1]) == (22, "  ... and 30 more")
