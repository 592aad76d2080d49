from __future__ import annotations

from typing import TYPE_CHECKING, Any

import forked
import pytest
from roxxel.cli import main
from roxxel_train import RunFolder

from .helpers import run_python
from .runs import CONFIG, kept_configs, write_project

if TYPE_CHECKING:
    from pathlib import Path


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in RunFolder(run).rows()[0] if row["kind"] == kind]


@pytest.mark.parametrize(
    ("step", "code", "status"), [(3, 75, "stopped"), (6, 0, "complete")]
)
def test_a_signal_in_the_last_step_ends_a_complete_run(
    step: int, code: int, status: str, tmp_path: Path
) -> None:
    config = write_project(
        tmp_path, CONFIG.replace("[trainer]", '[trainer]\neval_fn = "tiny:stop"')
    )
    with (tmp_path / "tiny.py").open("a") as file:
        file.write(
            "\n\nimport signal\n\n\ndef stop(state):\n"
            f"    if int(state.step[...]) == {step}:\n"
            "        signal.raise_signal(signal.SIGTERM)\n"
        )

    assert main(["train", str(config)]) == code

    run = RunFolder(tmp_path / "run")
    assert (run.status, run.ending["status"]) == (status, status)
    assert run.saved_step == step


def test_a_config_is_trained_lengthened_and_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    run = tmp_path / "run"

    assert main(["train", str(config)]) == 0
    shown, said = capsys.readouterr()
    assert said.splitlines()[0] == (
        f"{config}: making the model and tracing the update for 2 phases ..."
    )
    brief, _, rest = shown.partition("\n\n")
    assert [line.split()[0] for line in brief.splitlines()] == ["6", "tokens:", "the"]
    assert "phase 1: steps" not in rest
    assert "done: 6 of 6 steps" in shown
    assert f"roxxel report {run}" in shown
    assert f"roxxel train {config}" in shown
    assert [row["step"] for row in rows(run, "train")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows(run, "eval")] == [3, 6]
    assert kept_configs(run) == [0]

    assert main(["train", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "This run is already complete: 6 steps" in shown
    assert "phase 1: steps" not in shown

    config.write_text(CONFIG.replace("steps = 2", "steps = 3"))
    assert main(["train", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "done: 7 of 7 steps" in shown
    assert kept_configs(run) == [0, 6]
    assert "steps = 2" in (RunFolder(run).config_text(6) or "")

    assert main(["train", str(run / "config.toml")]) == 0
    assert "already complete: 7 steps" in capsys.readouterr().out

    config.write_text(CONFIG.replace("batch_size = 2", "batch_size = 3"))
    assert main(["train", str(config)]) == 1
    assert "the run there does not fit this curriculum" in capsys.readouterr().err
    longer = CONFIG.replace("steps = 2", "steps = 3")
    config.write_text(longer.replace("[eval]", "[eval]\noverlap = 1"))
    assert main(["train", str(config)]) == 1
    assert "the held-out set is not the one that the run has" in capsys.readouterr().err
    assert kept_configs(run) == [0, 6]
    assert "batch_size = 3" not in (run / "config.toml").read_text()


def test_a_complete_run_says_so_without_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    assert main(["train", str(config)]) == 0
    (tmp_path / "tiny.py").write_text("def make(width):\n    raise OSError('made')\n")

    for path in (config, tmp_path / "run" / "config.toml"):
        assert main(["train", str(path)]) == 0
        assert "already complete: 6 steps" in capsys.readouterr().out
    assert main(["train", str(config), "--set", "trainer.log_every=5"]) == 1
    (tmp_path / "run" / "checkpoints" / "6" / "checkpoint.json").write_text("{")
    assert main(["train", str(config)]) == 1


def test_a_run_that_lacks_its_last_evaluation_is_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    model = tmp_path / "tiny.py"
    model.write_text(f"{model.read_text()}{FAILS_AT_6}")
    set_eval = ["--set", "trainer.eval_fn='tiny:evaluate'"]
    assert main(["train", str(config), *set_eval]) == 1
    assert "no room for the samples" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").status == "ended with an error"
    (tmp_path / "has_room").touch()

    assert main(["train", str(config), *set_eval]) == 0

    assert "already complete" not in capsys.readouterr().out
    assert RunFolder(tmp_path / "run").status == "complete"
    assert [row.get("value") for row in rows(tmp_path / "run", "eval")] == [2.0, 2.0]
    assert main(["train", str(config), *set_eval]) == 0
    assert "already complete: 6 steps" in capsys.readouterr().out


FAILS_AT_6 = """

from pathlib import Path

def evaluate(state):
    if int(state.step[...]) == 6 and not Path(__file__).with_name("has_room").exists():
        raise OSError("no room for the samples")
    return {"value": 2.0}
"""


def test_a_start_that_trains_nothing_keeps_the_config_that_steps_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    run = tmp_path / "run"
    assert main(["train", str(config)]) == 0
    before = (run / "config.toml").read_text()

    assert main(["train", str(config), "--set", "trainer.log_every=5"]) == 0

    assert "already complete: 6 steps" in capsys.readouterr().out
    assert kept_configs(run) == [0]
    assert (run / "config.toml").read_text() == before


def test_a_refused_start_changes_nothing_and_names_the_sizes_to_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    run = tmp_path / "run"
    assert main(["train", str(config)]) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    assert main(["train", str(config), "--set", "model_args.width=3"]) == 1

    error = capsys.readouterr().err
    assert f"{run}/checkpoints/6: 1 leaf has another shape" in error
    assert "model_args.width = 2, which is now 3" in error
    assert "or give another save_path" in error
    assert "on_mismatch" not in error
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after == before


def test_preflight_compiles_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["train", str(config), "--preflight"]) == 0

    shown = capsys.readouterr().out
    assert "2 x 8" in shown
    assert shown.endswith("ready\n")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_vocabulary_too_small_for_the_data_is_refused_before_a_folder_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["train", str(config), "--set", "model_args.vocabulary=46"]) == 1

    error = capsys.readouterr().err
    assert f"{config}: source 'self' holds tokens up to 46" in error
    assert "vocabulary of at least 47" in error
    assert not (tmp_path / "run").exists()


def test_a_loss_that_reads_a_field_of_no_config_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    model = tmp_path / "tiny.py"
    reads = model.read_text().replace("model(batch)", 'model(batch["tokens"])')
    model.write_text(reads)

    assert main(["train", str(config)]) == 1

    line = reads[: reads.index('batch["tokens"]')].count("\n") + 1
    _, error = capsys.readouterr().err.splitlines()
    assert error.startswith(f"roxxel: {model}:{line} raises TypeError (")
    assert "where batch is one array of tokens, int32[" in error
    assert 'fields = ["tokens", "segment_ids"] under [trainer]' in error
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_in_whose_folder_another_trains_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    config = write_project(tmp_path)
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert main(["train", str(config)]) == 1

    assert "another process is running in this folder" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_signal_ends_with_75_and_the_same_command_goes_on(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    program = (
        "import os, signal, sys\n"
        "from roxxel.cli import main\n"
        "from roxxel_train import Logger\n"
        "says = Logger.metrics\n"
        "def metrics(self, row, *more, **options):\n"
        "    says(self, row, *more, **options)\n"
        "    if row['step'] == 2: os.kill(os.getpid(), signal.SIGTERM)\n"
        "Logger.metrics = metrics\n"
        f"sys.exit(main(['train', {str(config)!r}]))\n"
    )

    stopped = run_python("-W", "error", "-c", program, run=forked.run)

    assert stopped.returncode == 75, stopped.stderr
    assert stopped.stderr.count("SIGTERM ended the run after step") == 1
    assert "start the run again to continue" in stopped.stderr

    again = "-m", "roxxel", "train", str(config)
    done = run_python("-W", "error", *again, run=forked.run)

    assert done.returncode == 0, done.stderr
    assert "resumed from step" in done.stderr
    steps = [row["step"] for row in rows(tmp_path / "run", "train")]
    assert steps == [1, 2, 3, 4, 5, 6]
