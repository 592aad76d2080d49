"""Any pytree is saved as it is now, and loaded into the structure that is given."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import (
    Checkpointer,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    cli,
)

from .helpers import flip, largest_file
from .trees import ByText, Frozen, Pair, bits, trees, updated

if TYPE_CHECKING:
    from collections.abc import Callable


def params(value: float = 0) -> dict[str, Any]:
    """Return parameters that a functional update replaces."""
    return {"dense": {"kernel": jnp.full((2, 3), value), "bias": jnp.full(3, value)}}


@pytest.mark.parametrize("num_devices", [1, 4])
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_nesting_comes_back_bit_for_bit(
    num_devices: int, data: st.DataObject
) -> None:
    first = data.draw(trees(num_devices))
    assume(any(np.size(leaf) for leaf in jax.tree.leaves(first)))
    second = updated(first)
    with tempfile.TemporaryDirectory() as folder, Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=first)
        checkpointer.save(2, state=second, snapshot=True)
        checkpointer.wait()

        assert bits(checkpointer.load(like=first)) == bits(second)
        assert bits(checkpointer.load(1, like=second)) == bits(first)
        loaded = checkpointer.load(1, like=first)
        assert jax.tree.structure(loaded) == jax.tree.structure(first)


# Each group has names that some file system, bucket or library takes for one, takes for
# its own, or refuses.
ODD_NAMES = [
    ["A", "a"],
    ["\u00e9", "e\u0301", "\u212b", "\u00c5", "\u00df", "ss", "\u017f"],
    ["\\", "a\\", "\\a", "..\\", "a\\..\\b", "/\\", "/", "//", "a/b"],
    ["", " ", ".", "..", "...", "a.", "a ", " a", "a..", ".a", "-", "~", "%", "%25"],
    ["con", "CON", "nul", "nul.txt", "com1", "aux~", "C:", "a:b", "a*?<>|b", '"'],
    ["\x00", "\x1b[2J", "\x11", "\u0011", "\U000110bd", "\x110BD", "\ud800", "\u202e"],
    ["c", "0", "zarr.json", "_METADATA", "checkpoint.json", "a.orbax-checkpoint-tmp-1"],
    ["n" * 300, "n" * 301, "N" * 300, "\u4e00" * 300],
]
NAMES = st.one_of(
    st.text(max_size=8),
    st.text("aA./\\%~: ", max_size=5),
    st.text(st.characters(), min_size=1, max_size=3),
    st.sampled_from([name for names in ODD_NAMES for name in names]),
)


@pytest.mark.parametrize("names", ODD_NAMES, ids=lambda names: ascii(names[0])[:8])
def test_a_leaf_may_have_any_name(tmp_path: Path, names: list[str]) -> None:
    nested = {"a": {name: np.array([i, 1]) for i, name in enumerate(names)}}
    check_names(tmp_path, {**nested, **{n: np.array(i) for i, n in enumerate(names)}})


@given(
    st.recursive(
        st.builds(np.arange, st.integers(1, 3)),
        lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4),
        max_leaves=8,
    )
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_two_names_of_leaves_meet_in_a_file(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_names(Path(folder), tree)


def check_names(folder: Path, tree: Any) -> None:
    """Save a tree; check that it comes back, and the names of its files."""
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=tree)
    assert bits(checkpointer.load(like=tree)) == bits(tree)
    assert checkpointer.report is not None
    assert all(name.isprintable() for name in checkpointer.report.restored)
    assert len(checkpointer.report.restored) == len(jax.tree.leaves(tree))
    for command in (["ls"], ["verify"], ["diff", "--values", f"{folder}@1"]):
        assert cli.main([*command, f"{folder}@1" if command[1:] else str(folder)]) == 0
    state = folder / "1" / "state"
    for path in state.rglob("*"):
        name = path.relative_to(state).as_posix()
        assert len(name) < 500
        for part in name.split("/"):
            assert len(part) <= 80
            assert re.fullmatch(r"[a-z0-9_~-]+|zarr\.json|_METADATA", part)
            assert part not in {"con", "nul", "aux", "com1"}


def test_a_leaf_may_lie_deeper_than_any_path_of_a_disk(tmp_path: Path) -> None:
    tree: Any = np.arange(3)
    for depth in range(150):
        tree = {f"layer-{depth}-of-a-deep-tree-of-modules": tree}

    check_names(tmp_path, tree)


def test_leaves_that_would_share_a_name_are_refused(tmp_path: Path) -> None:
    for tree in (
        {"a": ByText(jnp.ones(1), jnp.ones(2))},
        ByText({"c": jnp.ones(1)}, jnp.ones(2)),
    ):
        with pytest.raises(CheckpointError, match="same path as text"):
            Checkpointer(tmp_path / "run").save(1, state=tree)


def test_an_export_refuses_two_leaves_of_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {"params": {"a.b": jnp.ones(1), "a": {"b": jnp.ones(2)}}}
    with Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(1, state=tree)
    file = tmp_path / "out.safetensors"
    export = ["export", str(tmp_path / "run"), str(file)]

    assert cli.main([*export, "--subtree", "params"]) == 1
    assert "a.b in the file; add --all" in capsys.readouterr().err
    assert not file.exists()
    assert cli.main([*export, "--all"]) == 0


def test_every_save_writes_the_state_that_it_is_given(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        state = params(0)
        for step in (1, 2, 3):
            state = jax.tree.map(lambda leaf: leaf + 1, state)
            assert checkpointer.save(step, {"loss": 1 / step}, state=state)

    reading = Checkpointer(tmp_path)
    assert bits(reading.load(2, like=params())) == bits(params(2))
    assert bits(reading.load(like=params())) == bits(params(3))
    assert reading.report is not None
    assert reading.report.step == 3
    assert reading.best_step == 3


def test_shapes_are_enough_to_load(tmp_path: Path) -> None:
    transform = optax.adam(1e-3)

    def make() -> dict[str, Any]:
        weights = params(1)
        return {
            "params": weights,
            "optimizer": transform.init(weights),
            "keys": jax.random.split(jax.random.key(3), 2),
            "empty": jnp.zeros((0, 2), jnp.bfloat16),
            "no keys": jax.random.split(jax.random.key(3, impl="rbg"), 2)[:0],
            "step": jnp.int32(7),
        }

    state = make()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(7, state=state)

    loaded = Checkpointer(tmp_path).load(like=jax.eval_shape(make))

    assert bits(loaded) == bits(state)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_shapes_with_shardings_put_arrays_on_their_devices(
    tmp_path: Path, num_devices: int
) -> None:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    state: dict[str, Any] = {"w": jnp.ones((8, 4)), "k": jax.random.key(1), "n": 3}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state=state)
    like = {
        "w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=rows),
        "k": jax.ShapeDtypeStruct(
            (), state["k"].dtype, sharding=NamedSharding(mesh, PartitionSpec())
        ),
        "n": jax.ShapeDtypeStruct((), jnp.int32),
    }

    loaded = Checkpointer(tmp_path).load(like=like)

    assert loaded["w"].sharding == rows
    assert (loaded["w"] == state["w"]).all()
    assert len(loaded["k"].devices()) == num_devices
    assert (jax.random.key_data(loaded["k"]) == jax.random.key_data(state["k"])).all()
    assert bits(loaded["n"]) == bits(jnp.int32(3))


def test_a_counter_may_begin_as_a_number_and_go_on_as_an_array(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state={"step": jnp.int32(5), "rate": 0.5})

        loaded = checkpointer.load(like={"step": 0, "rate": jnp.float32(0)})

    assert loaded == {"step": 5, "rate": 0.5}
    assert type(loaded["step"]) is int
    assert isinstance(loaded["rate"], jax.Array)


@pytest.mark.parametrize(
    ("number", "like", "shown"),
    [
        (2**40, jnp.int32(0), str(2**40)),
        (1e300, jnp.float32(0), "1e+300"),
        (-7e4, jnp.float16(0), "-70000.0"),
        (1e300 + 1j, jnp.complex64(0), "(1e+300+1j)"),
    ],
    ids=str,
)
def test_a_number_that_no_array_of_like_can_hold_is_named(
    tmp_path: Path, number: Any, like: Any, shown: str
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state={"x": number})

        for array in (like, np.asarray(like), np.asarray(like)[()]):
            with pytest.raises(
                CheckpointMismatchError,
                match=f"state/x: is {re.escape(shown)} .* does not fit {like.dtype}",
            ):
                checkpointer.load(like={"x": array})


def test_a_float_is_rounded_to_the_dtype_of_like(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state={"third": 1 / 3, "infinite": float("inf")})

        like = {"third": jnp.float32(0), "infinite": jnp.float16(0)}
        loaded = checkpointer.load(like=like)

    assert loaded["third"] == np.float32(1 / 3)
    assert loaded["infinite"] == np.inf


def test_one_error_names_every_difference_by_path(tmp_path: Path) -> None:
    saved = {"a": jnp.ones(2), "b": Pair(jnp.ones(1), None), "c": 3}
    like = {"a": jnp.ones(3), "b": Pair(jnp.ones(1), jnp.ones(4)), "d": {"e": 1.5}}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state=saved)

        with pytest.raises(CheckpointMismatchError) as error:
            checkpointer.load(like=like)

    text = str(error.value)
    assert str(tmp_path / "1") in text
    assert "state/a: float32[2] in the checkpoint, float32[3] now" in text
    assert "state/b/right: not in the checkpoint" in text
    assert "state/d/e: not in the checkpoint" in text
    assert "and 1 more" in text


def test_a_part_can_be_loaded_with_strict_false(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state={"params": params(2), "optimizer": jnp.ones(9)})

        like = {"params": {**params(), "head": jnp.full(2, 7)}}
        loaded = checkpointer.load(like=like, strict=False)

        assert bits(loaded) == bits({"params": {**params(2), "head": jnp.full(2, 7)}})
        assert checkpointer.report is not None
        assert checkpointer.report.new == ("state/params/head",)
        assert checkpointer.report.dropped == ("state/optimizer",)
        with pytest.raises(
            CheckpointMismatchError, match="params/head: not in the checkpoint"
        ):
            checkpointer.load(like=jax.eval_shape(lambda: like), strict=False)
        for empty in ({}, {"params": None}):
            with pytest.raises(CheckpointMismatchError, match="no leaf in common"):
                checkpointer.load(like=empty, strict=False)
            with pytest.raises(
                CheckpointMismatchError, match="optimizer: only in the checkpoint"
            ):
                checkpointer.load(like=empty)
        with pytest.raises(CheckpointMismatchError, match="no leaf in common"):
            checkpointer.load(like={"other": jnp.ones(2)}, strict=False)


def test_an_empty_folder_has_nothing_to_load(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "none")

    assert checkpointer.peek() is None
    with pytest.raises(CheckpointNotFoundError, match="holds no checkpoint"):
        checkpointer.load(like=params())


def test_a_damaged_step_of_a_tree_is_found_by_peek_and_load(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state=params(1))
        checkpointer.save(2, state=params(2))
        checkpointer.wait()
        flip(largest_file(tmp_path / "2" / "state" / "state" / "dense"))

        assert checkpointer.peek() == (1, None)
        assert bits(checkpointer.load(like=params())) == bits(params(1))


def test_each_form_names_the_other(tmp_path: Path) -> None:
    model = live()
    objects = Checkpointer(tmp_path / "objects", model)
    tree = Checkpointer(tmp_path / "tree")

    with pytest.raises(TypeError, match=r"without a model.*state=tree"):
        tree.save(1)
    with pytest.raises(TypeError, match=r"was opened with a model.*leave out state="):
        objects.save(1, state=params())
    with pytest.raises(TypeError, match=r"without a model.*load\(like=tree\)"):
        tree.restore()
    with pytest.raises(TypeError, match=r"with a model.*restore\(\)"):
        objects.load(like=params())
    with pytest.raises(TypeError, match="optimizer was given without a model"):
        Checkpointer(tmp_path, None, optax.adam(1e-3).init(params()))
    assert list(tmp_path.iterdir()) == []

    objects.save(1)
    tree.save(1, state=params())
    objects.wait()
    tree.wait()
    with pytest.raises(CheckpointMismatchError, match="load"):
        Checkpointer(tmp_path / "tree", model).restore()
    with pytest.raises(CheckpointMismatchError, match="restore"):
        Checkpointer(tmp_path / "objects").load(like=params())


def live() -> nnx.Dict[Any]:
    """Return an NNX object with one Variable."""
    return nnx.Dict(weight=nnx.Param(jnp.ones(2)))


class WithTuple(nnx.Module):
    """Holds an array in a tuple, where nothing can replace the array."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(1))
        self.parts = nnx.data((jnp.ones(2),))


@pytest.mark.parametrize(
    "make",
    {
        "dict": params,
        "with optax": lambda: (params(), optax.adam(1e-3).init(params())),
        "frozen dataclass": lambda: Frozen(jnp.ones(2), None),
        "nnx.State": lambda: nnx.state(live()),
        "dict of nnx.State": lambda: {"model": nnx.state(live())},
        "array beside a model": lambda: {"net": live(), "ema": jnp.ones(1)},
        "array in a tuple": WithTuple,
        "empty": nnx.Dict,
        "array": lambda: jnp.ones(2),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_would_be_saved_as_its_first_value_is_refused(
    tmp_path: Path, make: tuple[str, Callable[[], Any]]
) -> None:
    model = make[1]()
    with pytest.raises(TypeError, match=r"model.*state=tree.*load\(like=tree\)"):
        Checkpointer(tmp_path, model)


def test_an_optimizer_must_be_an_nnx_object_too(tmp_path: Path) -> None:
    model = live()

    with pytest.raises(TypeError, match=r"optimizer.*state=tree.*load\(like=tree\)"):
        Checkpointer(tmp_path, model, optax.adam(1e-3).init(params()))


@pytest.mark.parametrize(
    ("leaf", "named"),
    [
        ("text", "str"),
        (jax.nn.relu, "state/leaf"),
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.zeros(2, "m8[s]"), "timedelta64"),
        (np.ones(2, np.longdouble), "float128"),
        (np.ones(2, np.clongdouble), "complex256"),
        (2**64, "64 bits"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "no values to save"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_leaf_that_no_checkpoint_can_hold_is_named(
    tmp_path: Path, leaf: Any, named: str
) -> None:
    checkpointer = Checkpointer(tmp_path / "run")

    with pytest.raises(TypeError, match="state/leaf") as error:
        checkpointer.save(1, state={"leaf": leaf, "array": jnp.ones(1)})

    assert named in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_state_without_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no arrays"):
        Checkpointer(tmp_path / "run").save(1, state={"nothing": None})


def test_arrays_of_a_tree_may_be_donated_as_soon_as_save_returns(
    tmp_path: Path,
) -> None:
    overwrite = jax.jit(
        lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0
    )
    state = {"w": jnp.arange(90_000.0), "q": jnp.arange(9_000).astype(jnp.int4)}
    expected = bits(state)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state=state)
        for _ in range(3):
            state = overwrite(state)

        assert bits(checkpointer.load(like=state)) == expected


def test_the_commands_show_compare_and_export_a_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            state = {"params": params(step), "count": step}
            checkpointer.save(step, {"loss": 1.0}, state=state)

    assert cli.main(["ls", str(tmp_path / "run" / "2")]) == 0
    shown = capsys.readouterr().out
    assert "state/params/dense/kernel" in shown
    assert "state: 3 leaves" in shown
    steps = [f"{tmp_path}/run@1", f"{tmp_path}/run@2"]
    assert cli.main(["diff", "--values", *steps]) == 3
    assert "state/params/dense/kernel: 6 of 6 values differ" in capsys.readouterr().out
    assert cli.main(["verify", str(tmp_path / "run")]) == 0
    file = tmp_path / "out.safetensors"
    export = ["export", steps[1], str(file)]
    assert cli.main(export) == 1
    assert "--subtree" in capsys.readouterr().err
    assert not file.exists()
    assert cli.main([*export, "--subtree", "params"]) == 0
    header = file.read_bytes()
    assert b'"dense.kernel"' in header
    assert b"count" not in header
    assert cli.main([*export, "--all"]) == 0
    assert b'"state/params/dense/kernel"' in file.read_bytes()
