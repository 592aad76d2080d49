from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from compilation import QUICK_COMPILATION, folder_of_programs, share_compilations
from flushes import nothing_waits_for_the_disk
from suites import pytest_collection_modifyitems, pytest_xdist_setupnodes

# Before JAX looks: some tests need several devices, the others take one of them.
os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"
)

import jax
import pytest
from hypothesis import settings
from roxxel_train import trainer
from roxxel_train._step.step import choose_step as choose
from roxxel_train._step.step import jit_update as jit

__all__ = [
    "nothing_waits_for_the_disk",
    "pytest_collection_modifyitems",
    "pytest_xdist_setupnodes",
]

# JAX compiles at first use: how long an example takes says nothing here.
settings.register_profile("compiling", deadline=None, max_examples=50)
settings.load_profile("compiling")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share compiled programs between the tests of this run."""
    share_compilations(folder_of_programs(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session", autouse=True)
def trace_once() -> Iterator[None]:
    """Share traced and lowered updates between trainers that train alike.

    Tracing and lowering an update takes longer than all else that a small trainer does.
    A loss that a test defines is not shared: it may hold objects of this test.
    """
    steps: dict[Any, Any] = {}
    updates: dict[Any, Any] = {}

    def choose_step(loss_fn: Any, train_step: Any, parts: int) -> Any:
        step = choose(loss_fn, train_step, parts)
        name = getattr(train_step or loss_fn, "__qualname__", "<locals>")
        if "<locals>" in name:
            return step
        return steps.setdefault((loss_fn, train_step, parts), step)

    def jit_update(graphdef: Any, step: Any, state: Any, *others: Any) -> Any:
        update = jit(graphdef, step, state, *others)
        if step not in steps.values():
            return update
        shardings = jax.tree.map(lambda x: x.sharding, state)
        leaves, structure = jax.tree.flatten((shardings, others))
        return updates.setdefault((graphdef, step, structure, *leaves), update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "choose_step", choose_step)
        patch.setattr(trainer, "jit_update", jit_update)
        yield


@pytest.fixture
def interrupts_are_not_ignored() -> Iterator[None]:
    """Undo what a shell or nohup does to programs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    before_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, before_hangup)
