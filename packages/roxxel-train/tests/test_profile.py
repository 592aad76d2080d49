from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_train._run.profile import Trace

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import ModelState


def test_trace_of_two_steps_is_in_the_folder_of_the_run(tmp_path: Path) -> None:
    trainer(tmp_path, profile=(2, 4)).run()

    folder = tmp_path / "run" / "profile"
    assert [path.stat().st_size > 0 for path in folder.rglob("*.xplane.pb")] == [True]
    log = (tmp_path / "run" / "system.log").read_text()
    assert f"wrote a trace of steps 2 to 3 to {folder}" in log


def test_run_goes_on_without_a_trace_while_the_program_writes_one(
    tmp_path: Path,
) -> None:
    with jax.profiler.trace(str(tmp_path / "other")):
        assert trainer(tmp_path, profile=(2, 4)).run().complete

    log = (tmp_path / "run" / "system.log").read_text()
    assert "no trace of this run is written: " in log
    assert list((tmp_path / "other").rglob("*.xplane.pb"))


def test_run_continues_after_the_program_stops_its_trace(tmp_path: Path) -> None:
    one = trainer(tmp_path, profile=(2, 8), eval_every=5, eval_fn=stop_trace)

    assert one.run().complete
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


def stop_trace(state: ModelState) -> None:
    if int(state.step[...]) == 5:
        jax.profiler.stop_trace()


@given(
    steps=st.tuples(st.integers(0, 12), st.integers(1, 12)).map(
        lambda pair: range(pair[0], pair[0] + pair[1])
    ),
    start=st.integers(0, 12),
    done=st.integers(0, 12),
)
def test_trace_covers_the_steps_and_always_stops(
    steps: range, start: int, done: int
) -> None:
    traced: list[int] = []
    waited: list[int] = []
    said: list[str] = []
    is_on = False

    def switch(*, on: bool) -> None:
        nonlocal is_on
        assert is_on is not on
        is_on = on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.profiler, "start_trace", lambda _: switch(on=True))
        patch.setattr(jax.profiler, "stop_trace", lambda: switch(on=False))
        trace = Trace(steps, None, said.append)
        for step in range(start, start + done):
            trace.at(step, lambda step=step: waited.append(step))
            if is_on:
                traced.append(step)
        trace.close()

    assert not is_on
    assert traced == [s for s in range(start, start + done) if s in steps]
    assert len(said) == bool(traced)
    if traced:
        assert waited[0] == traced[0]
        assert said[0].startswith(
            f"wrote a trace of steps {traced[0]} to {traced[-1]} "
        )


def test_run_that_ends_inside_the_range_stops_the_trace(tmp_path: Path) -> None:
    def trips(_: Any) -> None:
        raise RuntimeError("it tripped")

    with pytest.raises(RuntimeError, match="it tripped"):
        trainer(tmp_path, profile=(3, 99), eval_fn=trips, eval_every=5).run()

    log = (tmp_path / "run" / "system.log").read_text()
    assert "wrote a trace of steps 3 to 4 to" in log
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("profile", "options", "message"),
    [
        ((3, 3), {}, r"profile=\(3, 3\) holds no steps; give 0 <= start < stop"),
        ((-1, 3), {}, "holds no steps"),
        ((10, 12), {}, r"profile=\(10, 12\) starts after the last of 10 steps"),
        (
            (1, 3),
            {"save_path": None},
            r"profile=\(1, 3\) needs a folder for the trace; give save_path",
        ),
    ],
)
def test_wrong_range_is_named(
    tmp_path: Path, profile: tuple[int, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, profile=profile, **options)


@pytest.mark.parametrize("profile", [3, (1, 2, 3), ("a", "b"), (1.5, 2)])
def test_profile_that_is_not_two_steps_is_named(tmp_path: Path, profile: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"profile(\.0)? must be"):
        trainer(tmp_path, profile=profile)
