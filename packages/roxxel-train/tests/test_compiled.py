from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import pytest
from roxxel_train import Logger, Preempted

from .helpers import trainer, values

if TYPE_CHECKING:
    from pathlib import Path


def test_signal_while_the_first_step_compiles_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    say = Logger.info

    def listen(self: Logger, text: str, **options: Any) -> None:
        say(self, text, **options)
        if text.startswith("waiting for the compiler"):
            go_on.set()

    compile_now = jax.stages.Lowered.compile

    def compile_later(self: jax.stages.Lowered, **options: Any) -> Any:
        if not go_on.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            go_on.wait()
        return compile_now(self, **options)

    one = trainer(tmp_path / "a")
    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_later)
    monkeypatch.setattr(Logger, "info", listen)
    threads = set(threading.enumerate())

    with pytest.raises(Preempted) as caught:
        one.run()
    assert set(threading.enumerate()) <= threads
    assert (caught.value.step, caught.value.signal_name) == (0, "SIGTERM")
    assert one.run().start_step == 0
    unbroken = trainer(tmp_path / "b")
    unbroken.run()
    assert values(one) == values(unbroken)


def test_compiler_that_outlives_the_log_ends_without_an_error(tmp_path: Path) -> None:
    session = trainer(tmp_path)._session  # pyright: ignore[reportPrivateUsage] - a second signal leaves it so
    with ThreadPoolExecutor(1) as compiler:
        session.compile_ahead(compiler)

    assert [shape.shape for shape in session.updates.shapes()] == [(4, 9), (2, 17)]
