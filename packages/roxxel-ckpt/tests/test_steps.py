"""Which checkpoints stay, which give way, and what a step number means."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_ckpt import (
    BestRule,
    CheckpointDamagedError,
    Checkpointer,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    CheckpointUnreadableError,
    CheckpointWriteError,
)
from roxxel_ckpt._arrays import orbax
from roxxel_ckpt._place import disk
from roxxel_ckpt._place.disk import LocalFolder, LocalStep
from roxxel_ckpt._save import save
from roxxel_ckpt.cli import main
from roxxel_store import roxxel_command

from .helpers import (
    another,
    checkpointer,
    content,
    few,
    flip,
    largest_file,
    make,
    names,
    save_all,
    train,
)

LOSSES = [5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 7.0]


def test_a_save_reads_no_more_files_when_more_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, names = LocalStep.read, list[str]()

    def count(step: LocalStep, name: str) -> bytes:
        names.append(name)
        return read(step, name)

    monkeypatch.setattr(LocalStep, "read", count)
    counted: list[int] = []
    with checkpointer(tmp_path, max_to_keep=None) as saving:
        for step in range(1, 9):
            names.clear()
            save_all(saving, step)
            counted.append(len(names))

    assert len(set(counted[1:])) == 1, counted


def test_a_description_that_changed_on_the_disk_is_read_again(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving, checkpointer(tmp_path) as other:
        save_all(saving, 1, metrics_dict={"loss": 2.0})
        save_all(saving, 2, metrics_dict={"loss": 1.0})
        assert other.best_step == 2
        save_all(saving, 2, metrics_dict={"loss": 3.0}, force=True)
        assert other.best_step == 1


def test_the_newest_and_the_best_stay_over_a_restart(tmp_path: Path) -> None:
    for step, loss in enumerate(LOSSES):
        with checkpointer(tmp_path, max_to_keep=2, keep_best=2) as saving:
            saving.restore()
            assert saving.save(step, {"loss": loss})

    reading = checkpointer(tmp_path)
    assert reading.steps() == [2, 3, 5, 6]
    assert reading.latest_step == 6
    assert reading.best_step == 2


def test_a_read_only_checkpointer_changes_nothing(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    # Half-written files of a killed process, which the next save removes.
    staged = tmp_path / "3.1-9-0123456789abcdef"
    staged.mkdir()
    reading = checkpointer(tmp_path, seed=5, read_only=True)

    assert reading.restore() == 2
    assert staged.exists()
    with pytest.raises(CheckpointError, match="was opened with read_only=True"):
        reading.save(4)
    with another(tmp_path) as later:
        later.restore()
        assert staged.exists()
        later.save(4)
        assert not staged.exists()


def test_the_digest_of_a_step_is_that_of_its_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        with checkpointer(tmp_path / name, seed=seed) as saving:
            saving.save(3)
    digests = [checkpointer(tmp_path / name).digest(3) for name in "abc"]

    assert digests[0] == digests[1] != digests[2]
    assert len(str(digests[0])) == 16
    with pytest.raises(CheckpointNotFoundError, match="no step 4"):
        checkpointer(tmp_path / "a").digest(4)


def test_milestones_stay_for_ever(tmp_path: Path) -> None:
    with checkpointer(tmp_path, max_to_keep=1, keep_best=0, keep_every=3) as saving:
        save_all(saving, *range(1, 8))

    assert checkpointer(tmp_path).steps() == [3, 6, 7]


@settings(max_examples=5, deadline=None)
@given(
    minutes=st.lists(st.integers(1, 600), min_size=1, max_size=9),
    hours=st.integers(1, 6),
)
def test_one_checkpoint_of_each_duration_is_permanent(
    minutes: list[int], hours: int
) -> None:
    saved_at = [60.0 * passed for passed in itertools.accumulate(minutes)]
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        rules: dict[str, Any] = {"keep_best": 0, "keep_every": f"{hours}h"}
        saving = checkpointer(Path(folder), max_to_keep=1, **rules)
        for step, now in enumerate(saved_at):
            patch.setattr(time, "time", lambda now=now: now)
            save_all(saving, step)
        kept = saving.steps()

    times = [saved_at[step] for step in kept]
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert 0 in kept
    assert all(gap >= 3600 * hours for gap in gaps[:-1])
    assert all(gap < 3600 * hours + 60 * max(minutes) for gap in gaps)


@settings(max_examples=5, deadline=None)
@given(
    hours=st.lists(st.integers(-60, 60), min_size=2, max_size=9),
    drops_rule=st.booleans(),
)
def test_what_was_permanent_stays_under_any_clock(
    hours: list[int], drops_rule: bool
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        rules: dict[str, Any] = {"max_to_keep": 1, "keep_best": 0}
        permanent: set[int] = set()
        for step, now in enumerate(hours):
            patch.setattr(time, "time", lambda now=now: 3600.0 * now)
            is_last = step == len(hours) - 1
            rule = None if is_last and drops_rule else "6h"
            saving = checkpointer(Path(folder), keep_every=rule, **rules)
            save_all(saving, step)
            # Once a newer step exists, only a permanent one stays.
            assert permanent <= set(saving.steps())
            permanent = {*saving.steps()} - {step}

    assert 0 in permanent


def test_a_clock_that_was_ahead_once_does_not_end_permanence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [0, 7, 100_000, 14, 21, 28]
    saving = checkpointer(tmp_path, max_to_keep=1, keep_best=0, keep_every="6h")
    for step, now in enumerate(hours):
        monkeypatch.setattr(time, "time", lambda now=now: 3600.0 * now)
        save_all(saving, step)

    assert saving.steps() == [0, 1, 2, 3, 4, 5]


def test_a_damaged_description_makes_no_permanent_step_deletable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = checkpointer(tmp_path, max_to_keep=1, keep_best=0, keep_every="6h")
    for step, now in enumerate([0, 3, 6, 9]):
        if step == 3:
            flip(tmp_path / "0" / "checkpoint.json", 30)
        monkeypatch.setattr(time, "time", lambda now=now: 3600.0 * now)
        save_all(saving, step)

    assert {0, 2, 3} <= {int(name) for name in names(tmp_path)}


def test_the_best_is_judged_by_the_held_out_loss_then_the_mean(tmp_path: Path) -> None:
    with checkpointer(tmp_path, max_to_keep=None) as saving:
        save_all(saving, 1, metrics_dict={"loss": 0.1})
        save_all(saving, 2, metrics_dict={"loss": 0.2})
        assert saving.best_step == 1
        save_all(saving, 3, metrics_dict={"loss": 0.9, "loss_since_save": 0.5})
        save_all(saving, 4, metrics_dict={"loss": 0.3, "loss_since_save": 0.6})
        assert saving.best_step == 3
        save_all(
            saving, 5, metrics_dict={"loss": 9, "loss_since_save": 9, "eval_loss": 9}
        )
        save_all(saving, 6, metrics_dict={"loss": 8, "eval_loss": math.nan})
        assert saving.best_step == 5
    assert checkpointer(tmp_path, best_metric="loss").best_step == 1


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_newer_of_two_equal_steps_is_the_best(mode: Literal["min", "max"]) -> None:
    equal = {1: {"loss": 1.0}, 2: {"loss": 1.0}}

    assert BestRule("loss", mode).ranked(equal) == [2, 1]


def test_a_missing_or_nan_metric_is_never_the_best(tmp_path: Path) -> None:
    with checkpointer(tmp_path, best_metric="accuracy", best_mode="max") as saving:
        saving.save(1, {"accuracy": math.nan})
        saving.save(2, {"accuracy": math.inf})
        saving.save(3, {"loss": 0.0, "accuracy": None})
        assert saving.best_step is None
        saving.save(4, {"accuracy": -2})

    reading = checkpointer(tmp_path, best_metric="accuracy", best_mode="max")
    assert reading.best_step == 4
    assert reading.metrics(2) == {"accuracy": math.inf}


def save_scores(saving: Checkpointer, scores: dict[int, float]) -> None:
    """Save steps of which the newest has the lowest loss."""
    for step, score in scores.items():
        save_all(saving, step, metrics_dict={"loss": -step, "score": score})


def test_reader_judges_by_the_rule_of_the_program_that_saved(tmp_path: Path) -> None:
    with checkpointer(tmp_path, best_metric="score", best_mode="max") as saving:
        save_scores(saving, {1: 0.5, 2: 0.9, 3: 0.7})

    assert checkpointer(tmp_path).best_step == 2
    assert checkpointer(tmp_path, best_metric="score").best_step == 2
    assert checkpointer(tmp_path, best_mode="min").best_step == 1
    assert checkpointer(tmp_path, best_metric="loss").best_step == 3


def test_program_without_a_rule_keeps_the_best_by_the_recorded_one(
    tmp_path: Path,
) -> None:
    with checkpointer(tmp_path, best_metric="score", best_mode="max") as saving:
        save_scores(saving, {1: 0.5, 2: 0.9})
    with checkpointer(tmp_path, max_to_keep=1) as saving:
        saving.restore()
        save_scores(saving, {3: 0.7, 4: 0.6})

        assert saving.steps() == [2, 4]
        assert saving.best_rule == BestRule("score", "max")


def test_given_rule_replaces_the_recorded_one(tmp_path: Path) -> None:
    with checkpointer(tmp_path, best_metric="score", best_mode="max") as saving:
        save_scores(saving, {1: 0.5, 2: 0.9})
    with checkpointer(tmp_path, best_metric="loss") as saving:
        saving.restore()
        save_scores(saving, {3: 0.7})

    reading = checkpointer(tmp_path)
    assert reading.best_rule == BestRule("loss", "min")
    assert reading.best_step == 3


METRICS = st.dictionaries(
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(["loss", "other"]), st.floats(width=16)),
    max_size=9,
)


@settings(max_examples=5, deadline=None)
@given(
    metrics=METRICS,
    newest=st.integers(1, 5),
    best=st.integers(0, 3),
    mode=st.sampled_from(["min", "max"]),
)
def test_the_newest_always_stay_and_nothing_better_goes(
    metrics: dict[int, dict[str, float]], newest: int, best: int, mode: str
) -> None:
    rules: dict[str, Any] = {"keep_best": best, "best_mode": mode}
    with tempfile.TemporaryDirectory() as folder:
        saving = checkpointer(Path(folder), max_to_keep=newest, **rules)
        for step in sorted(metrics):
            save_all(saving, step, metrics_dict=metrics[step])
        kept = set(saving.steps())

    assert set(sorted(metrics)[-newest:]) <= kept <= set(metrics)
    sign = 1 if mode == "min" else -1
    values = {
        step: sign * of_step["loss"]
        for step, of_step in metrics.items()
        if math.isfinite(of_step.get("loss", math.nan))
    }
    gone = [value for step, value in values.items() if step not in kept]
    stayed = [value for step, value in values.items() if step in kept]
    assert all(sum(good <= bad for good in stayed) >= best for bad in gone)


def test_a_step_that_exists_is_not_saved_again(tmp_path: Path) -> None:
    model, optimizer = make()
    with Checkpointer(tmp_path, model, optimizer) as saving:
        save_all(saving, 1, extra={"try": 1})
        before = content(model, optimizer)
        train(model, optimizer, range(1))

        assert saving.save(1, extra={"try": 2}) is False
        assert saving.peek() == (1, {"try": 1})

        assert saving.save(1, extra={"try": 2}, force=True) is True
        after = content(model, optimizer)
        assert saving.restore() == 1
        assert saving.extra == {"try": 2}
        assert content(model, optimizer) == after != before
    assert names(tmp_path) == ["1"]


@pytest.mark.parametrize("step", [15, 20, 30, 35])
@pytest.mark.parametrize("restored", [10, None])
def test_a_save_before_newer_steps_is_refused_with_two_remedies(
    tmp_path: Path, step: int, restored: int | None
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20, 30)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    later = checkpointer(tmp_path, seed=1)
    if restored is not None:
        later.restore(restored)
    if restored is None and step >= 30:
        assert later.save(step) == (step > 30)
        return

    with pytest.raises(
        CheckpointWriteError, match=r"[^1]0.*branch.*or delete"
    ) as error:
        later.save(step, force=True)

    assert str(tmp_path) in str(error.value)
    assert "steps 20, 30" in str(error.value) or "step 30" in str(error.value)
    assert roxxel_command("ckpt delete") in str(error.value)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_program_saves_nothing_before_its_own_newest_step(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
        with pytest.raises(
            CheckpointWriteError,
            match=r"step 15 would be saved after step 20, .* from step 20 into",
        ):
            saving.save(15)
        save_all(saving, 30)

        assert saving.steps() == [10, 20, 30]


def test_a_run_goes_on_from_an_earlier_step_once_the_later_are_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20, 30)

    assert main(["delete", f"{tmp_path}@20", f"{tmp_path}@30"]) == 0

    assert capsys.readouterr().out == (
        f"{tmp_path}/20: is deleted\n{tmp_path}/30: is deleted\n"
    )
    with checkpointer(tmp_path) as saving:
        assert saving.restore() == 10
        save_all(saving, 15)
        assert saving.steps() == [10, 15]


@pytest.mark.parametrize("what", ["@20", "", "@2023", "/10"])
def test_what_is_no_step_of_a_folder_is_not_deleted(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10)
    (tmp_path / "2023").mkdir()
    (tmp_path / "2023" / "photo").write_text("mine")

    assert main(["delete", f"{tmp_path}{what}"]) == 1

    said = capsys.readouterr().err
    assert "FOLDER@STEP" in said or "it holds step 10" in said
    assert (tmp_path / "2023" / "photo").exists()
    assert checkpointer(tmp_path).steps() == [10]


def test_no_step_is_deleted_if_one_of_the_names_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)

    assert main(["delete", f"{tmp_path}@20", f"{tmp_path}@15"]) == 1

    assert "has no step 15" in capsys.readouterr().err
    assert checkpointer(tmp_path).steps() == [10, 20]


def test_damaged_newer_steps_are_kept_under_another_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20, 30)
    for _ in range(2):
        flip(largest_file(tmp_path / "20"))
        (tmp_path / "30" / "checkpoint.json").unlink()
        with checkpointer(tmp_path) as saving:
            assert saving.restore() == 10
            caplog.clear()
            save_all(saving, 20, 30)
            assert saving.steps() == [10, 20, 30]
            assert saving.restore() == 30
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        *("10", "20", "30"),
        *("20.damaged", "30.damaged", "20.damaged.2", "30.damaged.2"),
    }
    first, second = caplog.messages[:2]
    assert "step 20 is damaged" in first
    assert f"{tmp_path / '20.damaged.2'}" in first
    assert f"{tmp_path / '30.damaged.2'}" in second


def test_a_damaged_step_that_was_repaired_meanwhile_is_not_renamed(
    tmp_path: Path,
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)
    shutil.copytree(tmp_path / "20", tmp_path.with_name("sound"))
    flip(largest_file(tmp_path / "20"))
    with checkpointer(tmp_path) as saving:
        assert saving.restore() == 10
        shutil.rmtree(tmp_path / "20")
        tmp_path.with_name("sound").rename(tmp_path / "20")

        with pytest.raises(CheckpointWriteError, match="holds step 20"):
            saving.save(15)
        assert saving.restore() == 20


@pytest.mark.parametrize("call", [(disk, "sync_folder"), (Path, "rename")])
def test_a_commit_that_fails_leaves_damaged_steps_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[Any, str]
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20, 30)
    for step in ("20", "30"):
        flip(largest_file(tmp_path / step))
    act, num_tried = getattr(*call), 0
    while True:
        failed: list[bool] = []
        earlier = iter(range(num_tried))

        def fail_once(
            *arguments: Any, failed: Any = failed, earlier: Any = earlier
        ) -> Any:
            if not failed and next(earlier, None) is None:
                failed.append(True)
                raise OSError(errno.EIO, "Input/output error")
            return act(*arguments)

        saving = checkpointer(tmp_path)
        saving.restore()
        monkeypatch.setattr(*call, fail_once)
        saving.save(20)
        with contextlib.suppress(CheckpointWriteError):
            saving.wait()
        monkeypatch.undo()
        if not failed:
            break
        assert saving.steps() == [10, 20, 30]
        assert list(tmp_path.glob("*.damaged*")) == []
        num_tried += 1
    assert num_tried > len((20, 30))
    assert saving.steps() == [10, 20]


def test_a_step_that_is_a_link_is_dropped_and_its_target_stays(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "other") as saving:
        save_all(saving, 10)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "10").symlink_to(tmp_path / "other" / "10")

    with checkpointer(tmp_path / "run", max_to_keep=1) as saving:
        assert saving.restore() == 10
        save_all(saving, 20, 30)

    assert names(tmp_path / "run") == ["30"]
    assert checkpointer(tmp_path / "other").restore() == 10


def test_a_missing_step_names_those_there_are(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 10, 20)

        with pytest.raises(CheckpointNotFoundError, match="has no step 5; it holds "):
            saving.restore(5)
        with pytest.raises(CheckpointNotFoundError, match="steps 10, 20"):
            saving.metrics(5)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "2023").mkdir()
    (tmp_path / "2023" / "photo").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    with checkpointer(tmp_path, max_to_keep=1) as saving:
        save_all(saving, 1, 2, 3000)

        assert saving.steps() == [3000]
        with pytest.raises(
            CheckpointWriteError, match=r"2023: exists and is not a che"
        ):
            saving.save(2023, force=True)
    assert (tmp_path / "2023" / "photo").read_text() == "mine"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_with_the_number_of_a_step_gives_way(tmp_path: Path) -> None:
    (tmp_path / "8").write_bytes(b"PK")
    with checkpointer(tmp_path) as saving:
        save_all(saving, 8)
    assert checkpointer(tmp_path).restore() == 8


@pytest.mark.parametrize("name", ["max_to_keep", "keep_best", "keep_every"])
@pytest.mark.parametrize("value", [1.5, True, math.nan])
def test_a_number_of_checkpoints_is_an_integer(
    tmp_path: Path, name: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=f"{name} must be .*, got {value}"):
        checkpointer(tmp_path, **{name: value})


def test_a_step_under_the_number_of_another_is_refused(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
    (tmp_path / "2").rename(tmp_path / "7")

    reading = checkpointer(tmp_path, seed=1)
    for use in (reading.restore, reading.peek, lambda: reading.restore(7)):
        with pytest.raises(CheckpointUnreadableError, match=r"/7: .* step 7 .* step 2"):
            use()
    assert reading.steps() == [1, 7]

    (tmp_path / "7").rename(tmp_path / "2")
    assert reading.restore() == 2


def test_arguments_out_of_range_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_to_keep": 0}, "max_to_keep must be at least 1, got 0"),
        ({"keep_best": -1}, "keep_best must be at least 0, got -1"),
        ({"keep_every": 0}, "keep_every must be at least 1, got 0"),
        ({"keep_every": "6 weeks"}, "keep_every='6 weeks' is not a duration; give a"),
        ({"keep_every": "0h"}, "keep_every='0h' is not a duration; give a"),
        ({"best_mode": "low"}, 'best_mode must be "min" or "max", got \'low\''),
        ({"timeout": 0}, "timeout must be above 0 and at most .* seconds, got 0"),
        ({"timeout": 1e12}, r"timeout .* at most \d{9,} seconds, got 1000000000000"),
        ({"timeout": math.inf}, "timeout must be .* seconds, got inf"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            checkpointer(tmp_path, **options)
    for url, named in {"https://host/run": "web server", "file:///run": "file"}.items():
        with pytest.raises(ValueError, match=f"{named}.*s3://"):
            Checkpointer(url, make()[0])
    for path in (None, b"run", 5):
        with pytest.raises(TypeError, match=r"checkpoint_path is .*; pass a path"):
            Checkpointer(path, make()[0])  # pyright: ignore[reportArgumentType] - the point
    with pytest.raises(ValueError, match=r'checkpoint_path is empty; pass "\."'):
        Checkpointer("", make()[0])
    wrong: dict[str, Any] = {"timeout": "60", "best_metric": ["loss"]}
    for name, value in wrong.items():
        with pytest.raises(TypeError, match=f"{name} must be a"):
            Checkpointer(tmp_path, **{name: value})
    with pytest.raises(ValueError, match=r"metrics_dict\['loss'\] is larger than any"):
        checkpointer(tmp_path).save(1, {"loss": 10**400})
    with pytest.raises(TypeError, match=r"step must be an integer, .*got '3'"):
        checkpointer(tmp_path).restore("3")  # pyright: ignore[reportArgumentType] - the point
    for use in (
        checkpointer(tmp_path).save,
        checkpointer(tmp_path).restore,
        checkpointer(tmp_path).metrics,
    ):
        with pytest.raises(TypeError, match=r"step must be an integer, .*got True"):
            use(True)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        checkpointer(tmp_path / "file")


def test_errors_are_builtin_errors_too() -> None:
    assert issubclass(CheckpointTimeoutError, TimeoutError)
    assert issubclass(CheckpointWriteError, OSError)
    assert issubclass(CheckpointNotFoundError, FileNotFoundError)


def test_folder_of_the_run_in_the_place_of_its_checkpoints_is_named(
    tmp_path: Path,
) -> None:
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with Checkpointer(tmp_path / "run" / "checkpoints", model) as saving:
        saving.save(3)

    with pytest.raises(CheckpointNotFoundError, match=r"run/checkpoints does; give"):
        Checkpointer(tmp_path / "run", model).restore()


@pytest.mark.parametrize("call", ["restore", "peek"])
def test_step_in_the_place_of_its_folder_is_named(tmp_path: Path, call: str) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 3)

    with pytest.raises(CheckpointNotFoundError, match=f"3: is a .*; give {tmp_path}$"):
        getattr(checkpointer(tmp_path / "3"), call)()


@pytest.mark.parametrize(
    "moment",
    [(orbax, "start_writing"), (save, "digest_files"), (LocalFolder, "commit")],
)
def test_a_folder_that_is_renamed_during_a_save_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: tuple[Any, str]
) -> None:
    old, new = tmp_path / "run" / "checkpoints", tmp_path / "moved" / "checkpoints"
    saving = checkpointer(old, seed=1)
    save_all(saving, 1)
    act = getattr(*moment)

    def rename(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        old.parent.rename(new.parent)
        return act(*arguments, **options)

    monkeypatch.setattr(*moment, rename)
    saving.save(2)
    with pytest.raises(CheckpointWriteError, match=f"{old}.* is gone"):
        saving.wait()

    again = checkpointer(new)
    assert again.restore(strict=True) == 1
    assert content(again.model) == content(few(1))
    save_all(again, 3)
    assert names(new) == ["1", "3"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_nothing_is_saved_where_a_folder_was(tmp_path: Path, is_kept: bool) -> None:
    with checkpointer(tmp_path / "a") as saving:
        save_all(saving, 1)
        if is_kept:
            (tmp_path / "a").rename(tmp_path / "b")
        else:
            shutil.rmtree(tmp_path / "a")

        with pytest.raises(CheckpointWriteError, match=r"a/manifest.json: is gone"):
            saving.save(2)
    assert not (tmp_path / "a").exists()


def test_a_folder_may_be_copied_and_moved_with_and_without_its_manifest(
    tmp_path: Path,
) -> None:
    with checkpointer(tmp_path / "a") as first:
        save_all(first, 1, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "whole")
    shutil.copytree(tmp_path / "a" / "2", tmp_path / "part" / "2")
    (tmp_path / "a").rename(tmp_path / "moved")
    for name in ("whole", "part", "moved"):
        with checkpointer(tmp_path / name) as saving:
            assert saving.restore() == 2
            save_all(saving, 3)
            assert saving.steps()[-2:] == [2, 3]


def test_a_step_that_went_by_hand_is_said_and_one_that_came_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1, 2)
        shutil.rmtree(tmp_path / "1")
        save_all(saving, 3, 4)
    assert len([text for text in caplog.messages if "step 1 is gone" in text]) == 1
    shutil.copytree(tmp_path / "2", tmp_path / "kept" / "2")
    for step in ("2", "3", "4"):
        shutil.rmtree(tmp_path / step)
    with checkpointer(tmp_path) as saving:
        assert saving.restore() == 0
        (tmp_path / "kept" / "2").rename(tmp_path / "2")
        assert saving.restore() == 2
        save_all(saving, 3, 4)
        assert saving.steps() == [2, 3, 4]
    assert "steps 3, 4 are gone" in caplog.text or "step 4 is gone" in caplog.text


@pytest.mark.parametrize("call", ["restore", "check_shared"])
def test_a_program_that_was_taken_over_may_begin_again(
    tmp_path: Path, call: str
) -> None:
    first, second = checkpointer(tmp_path), another(tmp_path)
    save_all(first, 1)
    second.restore()
    save_all(second, 2)
    with pytest.raises(CheckpointWriteError, match="another program"):
        first.save(3)
    assert first.restore() == 2
    if call == "check_shared":
        first.check_shared()
    save_all(first, 3)
    with pytest.raises(CheckpointWriteError, match="another program"):
        second.save(4)
    assert first.steps() == second.steps() == [1, 2, 3]


def test_a_program_that_hung_after_its_restore_takes_nobodys_turn(
    tmp_path: Path,
) -> None:
    hung, successor = checkpointer(tmp_path), another(tmp_path)
    save_all(successor, 1)
    hung.restore()
    successor.check_shared()
    save_all(another(tmp_path.with_name(f"{tmp_path.name}-alias")), 2)

    with pytest.raises(CheckpointWriteError, match="another program"):
        hung.save(2)
    assert hung.steps() == [1, 2]


def test_a_program_that_was_taken_over_begins_no_more_if_it_has_begun_by_other_means(
    tmp_path: Path,
) -> None:
    first, second = checkpointer(tmp_path), another(tmp_path)
    save_all(first, 1)
    second.restore()
    save_all(second, 2)

    with pytest.raises(CheckpointWriteError, match="another program"):
        checkpointer(tmp_path).check_shared(begins=False)
    save_all(second, 3)
    assert first.steps() == [1, 2, 3]


@pytest.mark.parametrize("damage", [flip, lambda path: path.write_text("{}")])
def test_a_damaged_manifest_is_an_error_of_a_save_alone(
    tmp_path: Path, damage: Any
) -> None:
    with checkpointer(tmp_path) as saving:
        save_all(saving, 1)
    damage(tmp_path / "manifest.json")

    later = checkpointer(tmp_path)
    assert later.restore() == 1
    with pytest.raises(CheckpointDamagedError, match=r"manifest\.json.*delete"):
        later.save(2)
    (tmp_path / "manifest.json").unlink()
    later.restore()
    save_all(later, 2)
    assert later.steps() == [1, 2]


def test_a_path_means_what_it_meant_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model, _ = make()
    opened = [Checkpointer("a", model), Checkpointer("~/b", model)]
    monkeypatch.chdir("elsewhere")

    for one in opened:
        with one:
            one.save(1)

    for name in ("a", "b"):
        assert (tmp_path / name / "1").is_dir()
