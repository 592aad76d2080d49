from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import read_description
from roxxel_ckpt.values import fault_of
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.digest import (
    add_step,
    batch_digest,
    device_digest,
    digest_text,
    sum_digests,
)
from roxxel_curriculum.testing import PositionReader
from roxxel_train import RunFolder

from .helpers import mesh_of, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

batches = arrays.arrays(
    st.sampled_from([np.int32, np.int64, np.float32, np.uint8, np.float16, np.bool_]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
)


def on_devices(batch: Any) -> int:
    low, high = np.asarray(jax.jit(device_digest)(batch))
    return int(low) | int(high) << 32


@given(batch=batches)
@settings(max_examples=50, deadline=None)
def test_devices_and_numpy_compute_the_same_digest(batch: Any) -> None:
    assert on_devices(batch) == batch_digest(batch)


@given(batch=batches, data=st.data())
@settings(max_examples=50, deadline=None)
def test_digests_of_the_rows_of_all_processes_add_up(
    batch: Any, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(batch)), max_size=3)))
    bounds = [0, *cuts, len(batch)]

    parts = [
        batch_digest(batch[start:stop], first_row=start)
        for start, stop in pairwise(bounds)
    ]

    assert sum_digests(data.draw(st.permutations(parts))) == batch_digest(batch)


@pytest.mark.parametrize(
    ("shape", "first_row", "named"), [((4,), 0, "(4,)"), ((2, 2), -1, "-1")]
)
def test_rows_that_are_none_are_refused(
    shape: tuple[int, ...], first_row: int, named: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        batch_digest(np.zeros(shape, np.int32), first_row)


def test_a_program_without_jax_computes_digests() -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from roxxel_curriculum.digest import batch_digest\n"
        "print(batch_digest([[1, 2, 3]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.stdout == f"{batch_digest([[1, 2, 3]])}\n", done.stderr


@given(data=st.data())
@settings(max_examples=50)
def test_every_changed_token_changes_the_digest(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    batch = data.draw(arrays.arrays(np.int32, shape))
    place = data.draw(st.tuples(*(st.integers(0, size - 1) for size in shape)))
    changed = batch.copy()
    changed[place] ^= 1 << data.draw(st.integers(0, 30))

    assert batch_digest(changed) != batch_digest(batch)


@given(steps=st.permutations(range(6)))
def test_digest_does_not_depend_on_the_order_of_additions(steps: list[int]) -> None:
    digest = expected = 0
    for step in steps:
        digest = add_step(digest, step, step * 7)
    for step in range(6):
        expected = add_step(expected, step, step * 7)

    assert digest == expected


def test_same_batch_in_another_step_has_another_digest() -> None:
    assert add_step(0, 3, 17) != add_step(0, 4, 17)


def test_digest_is_pinned() -> None:
    batch = np.arange(12, dtype=np.int32).reshape(3, 4)

    assert digest_text(batch_digest(batch)) == "c05949dab5f7900b"
    assert digest_text(add_step(0, 5, batch_digest(batch))) == "3c8f86ffdc9edc42"


@pytest.mark.parametrize("spec", [("data",), ("data", "seq"), (None, "seq"), ()])
def test_digest_does_not_depend_on_the_sharding(spec: tuple[Any, ...]) -> None:
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "seq"))
    batch = np.arange(32, dtype=np.int32).reshape(4, 8)

    placed = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(*spec)))

    assert on_devices(placed) == batch_digest(batch)


@pytest.mark.parametrize("fields", [("tokens",), ("segment_ids", "tokens", "source")])
def test_rows_and_checkpoints_have_the_digest_of_what_was_fed(
    tmp_path: Path, fields: tuple[str, ...]
) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        return model(tokens).mean()

    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "seq"))
    phases = [Phase(6, 4, 8), Phase(4, 2, 16)]
    one = trainer(
        tmp_path,
        phases,
        fields=fields,
        loss_fn=loss_fn,
        mesh=None,
        data_sharding=NamedSharding(mesh, PartitionSpec("data", "seq")),
    )
    one.run()

    digests = {0: digest_text(0)}
    digest = 0
    for step in range(10):
        batch: Any = one.sampler.batch(step)
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        digest = add_step(digest, step, batch_digest(tokens))
        digests[step + 1] = digest_text(digest)
    for row in rows(tmp_path):
        assert row["digest"] == digests[row["step"]]
    for step in (4, 8, 10):
        path = tmp_path / "run" / "checkpoints" / str(step)
        extra: Any = read_description(path).extra
        assert extra["ledger"]["digest"] == digests[step]


def test_every_save_has_the_digest_of_its_state_in_log_and_checkpoint(
    tmp_path: Path,
) -> None:
    trainer(tmp_path, mesh=mesh_of(2)).run()

    run = RunFolder(tmp_path / "run")
    extras = {each.step: each.extra["state_digest"] for each in run.checkpoints()[0]}
    assert run.saves() == extras
    assert [*extras] == [4, 8, 10]
    for step in extras:
        assert fault_of(f"{tmp_path}/run@{step}", run.saves()[step]) is None
    assert "at step 4" in str(fault_of(f"{tmp_path}/run@4", extras[8]))


def test_saves_that_a_start_gave_up_are_not_in_the_result(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    whole = RunFolder(tmp_path / "run").saves()
    for step in (8, 10):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))

    trainer(tmp_path).run()

    assert RunFolder(tmp_path / "run").saves() == whole
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert log.count('"kind": "save"') == 5


def test_floats_have_a_digest_and_batches_without_tokens_have_none(
    tmp_path: Path,
) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return model.out.bias.sum() + jnp.sum(jnp.asarray(batch["positions"])) * 0.0

    reader = PositionReader(1000)
    trainer(
        tmp_path,
        curriculum=Curriculum(reader, [Phase(3, 2, 8)]),
        fields=("positions",),
        loss_fn=loss_fn,
        mesh=mesh_of(1),
    ).run()

    assert all("digest" not in row for row in rows(tmp_path))
