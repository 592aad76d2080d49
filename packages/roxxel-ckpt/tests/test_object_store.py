"""Checkpoints behind `gs://`, in a bucket that keeps the rules of an object store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fsspec
import pytest
from roxxel_ckpt import Checkpointer
from roxxel_ckpt.cli import main

from .fake_bucket import FakeBuckets, objects, put, serve
from .helpers import content, few, make, save_all, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from etils import epath

RUN = "gs://bucket/run"


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    """Have fsspec and TensorStore meet the same bucket."""
    # TensorStore looks at the environment once, so there is one server for all tests.
    fsspec.register_implementation("gcs", FakeBuckets, clobber=True)
    with serve() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        yield


@pytest.fixture(autouse=True)
def empty() -> None:
    """Begin with an empty bucket."""
    FakeBuckets.store.clear()


def names() -> set[str]:
    """Return what lies in the folder of the run."""
    return {name.split("/")[3] for name in objects()}


def test_a_run_in_a_bucket_saves_keeps_and_restores_bit_for_bit() -> None:
    model, optimizer = make(seed=0)
    with Checkpointer(RUN, model, optimizer, max_to_keep=1) as saving:
        assert saving.restore() == 0
        for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0)):
            train(model, optimizer, range(step, step + 1))
            save_all(saving, step, metrics_dict={"loss": loss}, extra={"seed": step})
        assert saving.steps() == [1, 3]
    fresh, fresh_optimizer = make(seed=1)

    reading = Checkpointer(RUN, fresh, fresh_optimizer)

    assert reading.peek() == (3, {"seed": 3})
    assert reading.restore(strict=True) == 3
    assert content(fresh, fresh_optimizer) == content(model, optimizer)
    assert (reading.best_step, names()) == (1, {"1", "3"})


def test_a_flipped_bit_in_a_bucket_is_found() -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 1, 2)
        assert saving.peek() == (2, None)
        name, data = next(
            (name, data)
            for name, data in objects().items()
            if name.startswith("/bucket/run/2/state/")
        )
        put(name, bytes([data[0] ^ 1]) + data[1:])

        assert saving.restore() == 1


def test_an_abandoned_future_in_a_bucket_is_moved_aside() -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 1, 2)
        saving.restore(1)
        save_all(saving, 2)

        assert saving.steps() == [1, 2]
    moved = {name.split("/")[4] for name in objects() if "/abandoned/" in name}
    assert moved == {"2", "README"}


def test_a_step_in_a_bucket_is_replaced_by_force() -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 1, extra={"try": 1})
        assert saving.save(1, extra={"try": 2}) is False
        save_all(saving, 1, extra={"try": 2}, force=True)

        assert saving.peek() == (1, {"try": 2})


def test_a_step_in_parts_is_never_seen_and_removed_by_the_next_save() -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 1, 2)
    for mark in ("commit_success.txt", "digests.json"):
        del FakeBuckets.store[f"/bucket/run/2/{mark}"]

    with Checkpointer(RUN, few()) as saving:
        assert saving.steps() == [1]
        assert saving.restore() == 1
        assert names() == {"1", "2"}  # another process might be writing it now
        save_all(saving, 3)
        assert names() == {"1", "3"}


def test_the_only_step_may_be_one_in_parts() -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 1)
    for mark in ("commit_success.txt", "digests.json"):
        del FakeBuckets.store[f"/bucket/run/1/{mark}"]

    with Checkpointer(RUN, few()) as saving:
        assert saving.restore() == 0
        save_all(saving, 1)
        assert saving.steps() == [1]


@pytest.mark.parametrize("before", [(), (1,)])
def test_a_step_that_is_given_up_in_a_bucket_leaves_nothing(
    before: tuple[int, ...],
) -> None:
    def refuse() -> tuple[None, None]:
        raise ArithmeticError("not this one")

    with Checkpointer(RUN, few()) as saving:
        save_all(saving, *before)
        with pytest.raises(ArithmeticError):
            saving.save(2, describe=refuse)
        saving.wait()
        assert names() == {str(step) for step in before}
        save_all(saving, 2)

        assert saving.steps() == [*before, 2]
        assert names() == {"2", *map(str, before)}


@pytest.mark.parametrize("missing", ["meta/metadata", "tree/metadata"])
def test_arrays_that_say_nothing_of_themselves_are_no_step(missing: str) -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 4)
    # As a process leaves them that is killed when Orbax has done its part.
    for file in ("digests.json", missing):
        del FakeBuckets.store[f"/bucket/run/4/{file}"]

    with Checkpointer(RUN, few()) as saving:
        assert saving.steps() == []
        assert saving.restore() == 0
        save_all(saving, 4)
        assert saving.steps() == [4]


def test_a_deletion_cut_short_leaves_nothing_that_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Checkpointer(RUN, few(), max_to_keep=1) as saving:
        save_all(saving, 1)

        def fail(path: epath.Path, **_: object) -> None:
            raise OSError(5, f"Input/output error on {os.fspath(path)}")

        with monkeypatch.context() as patch:
            patch.setattr("etils.epath.gpath.PosixGPath.rmtree", fail)
            save_all(saving, 2)

        assert saving.steps() == [2]
        assert names() == {"1", "2"}
        save_all(saving, 3)
        assert names() == {"3"}


def test_the_command_looks_into_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(RUN, few()) as saving:
        save_all(saving, 7, metrics_dict={"loss": 0.5})

    assert main(["ls", RUN]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[0] == "7"
    assert row[-2:] == ["best", "loss=0.5"]
    assert main(["verify", RUN]) == 0
    assert main(["show", f"{RUN}/7"]) == 0
    assert capsys.readouterr().out.startswith(f"{RUN}/7: sound\n{RUN}/7\n")
