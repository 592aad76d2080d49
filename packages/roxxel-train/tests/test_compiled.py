from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_train import Logger, Preempted
from roxxel_train._compiled import CompiledAhead, CompiledShape
from roxxel_train._units import in_bytes

from .helpers import mesh_of, trainer, values

if TYPE_CHECKING:
    from pathlib import Path


def batch_of(shape: tuple[int, int]) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh_of(1), PartitionSpec())
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)


def programs(*batches: Any) -> CompiledAhead:
    state = jax.device_put(jnp.ones(3), NamedSharding(mesh_of(1), PartitionSpec()))
    function = jax.jit(lambda state, batch: state.sum() + batch.sum())
    return CompiledAhead(function, state, batches, mesh_of(1))


def test_each_shape_is_compiled_once() -> None:
    small, large = batch_of((2, 3)), batch_of((4, 3))
    ahead = programs(small, large, small)
    told: list[CompiledShape] = []

    with ThreadPoolExecutor(1) as compiler:
        ahead.begin(compiler, [small, large, small], told.append)
        ahead.begin(compiler, [large, small], told.append)

    assert [shape.shape for shape in told] == [(2, 3), (4, 3)]
    assert ahead.shapes() == tuple(told)
    assert str(told[0]).startswith("compiled for batches of 2 x 3 in ")
    assert ahead.program(small) is ahead.program(batch_of((2, 3)))
    assert str(CompiledShape((2, 3), 1.0, None)) == (
        "compiled for batches of 2 x 3 in 1.0 s"
    )


def test_cancelled_compilation_can_start_again() -> None:
    batch = batch_of((2, 3))
    ahead = programs(batch)
    is_blocked, go_on = threading.Event(), threading.Event()

    with ThreadPoolExecutor(1) as compiler:
        compiler.submit(lambda: (is_blocked.set(), go_on.wait()))
        is_blocked.wait()
        ahead.begin(compiler, [batch])
        assert ahead.program(batch, give_up=lambda: True) is None
        ahead.close()
        go_on.set()
        ahead.begin(compiler, [batch])

    assert ahead.program(batch, give_up=lambda: True) is not None


def test_signal_while_the_first_step_compiles_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    say = Logger.info

    def listen(self: Logger, text: str, **options: Any) -> None:
        say(self, text, **options)
        if text.startswith("waiting for the compiler"):
            go_on.set()

    compile_now = CompiledAhead._compile  # pyright: ignore[reportPrivateUsage] - made slow

    def compile_later(self: CompiledAhead, *args: Any) -> Any:
        if not go_on.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            go_on.wait()
        return compile_now(self, *args)

    monkeypatch.setattr(CompiledAhead, "_compile", compile_later)
    monkeypatch.setattr(Logger, "info", listen)
    monkeypatch.setattr("roxxel_train._compiled._ANNOUNCE_AFTER_S", 0.05)
    one = trainer(tmp_path / "a")
    threads = set(threading.enumerate())

    with pytest.raises(Preempted) as caught:
        one.run()
    assert set(threading.enumerate()) <= threads
    assert (caught.value.step, caught.value.signal_name) == (0, "SIGTERM")
    assert one.run().start_step == 0
    unbroken = trainer(tmp_path / "b")
    unbroken.run()
    assert values(one) == values(unbroken)


@given(number=st.integers(0, 2**60))
def test_size_is_shown_in_the_unit_that_keeps_it_short(number: int) -> None:
    text, unit = in_bytes(number).split(" ")

    factor = 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB").index(unit)
    shown = float(text.replace(",", ""))
    assert shown * factor == pytest.approx(number, rel=0.06, abs=0.5)
    assert shown < 1024.05 or unit == "TiB"


def test_compiler_that_outlives_the_log_ends_without_an_error(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    log = Logger()
    with ThreadPoolExecutor(1) as compiler:
        one._compile_ahead(compiler, log)  # pyright: ignore[reportPrivateUsage] - a second signal leaves it so

    assert [shape.shape for shape in one._updates.shapes()] == [(4, 9), (2, 17)]  # pyright: ignore[reportPrivateUsage]
