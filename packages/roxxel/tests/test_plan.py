from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from roxxel.cli import main
from roxxel.config import keep_config, load_config, open_curriculum

from .helpers import run_python
from .runs import CONFIG, write_project

if TYPE_CHECKING:
    from pathlib import Path


def make_checkpoint(run: Path, config: Path, step: int) -> None:
    """Leave in a run's folder what a trainer leaves there, without the arrays."""
    loaded = load_config(config)
    state = open_curriculum(loaded).sampler(loaded.seed).state(step)
    meta = run / "checkpoints" / str(step) / "meta"
    meta.mkdir(parents=True)
    described = {"format": 1, "step": step, "metrics": {}, "extra": {"data": state}}
    (meta / "metadata").write_text(json.dumps(described))
    keep_config(loaded, run, step)


def test_a_plan_is_printed_without_jax(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    program = (
        "import sys\n"
        "from roxxel.cli import main\n"
        f"assert main(['plan', {str(config)!r}]) == 0\n"
        "heavy = {'jax', 'flax', 'optax', 'orbax', 'matplotlib', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{open_curriculum(load_config(config)).plan(3)}\n"
    assert not (tmp_path / "run").exists()


def test_a_plan_is_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--json"]) == 0

    plan = open_curriculum(load_config(config)).plan(3)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(plan.to_dict()))


def test_a_plan_is_a_picture(tmp_path: Path) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--plot", str(tmp_path / "plan.svg")]) == 0

    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_an_ending_that_is_no_picture_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--plot", str(tmp_path / "plan.doc")]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel: --plot {tmp_path / 'plan.doc'}: ")
    assert error.count("\n") == 1


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("matplotlib.figure", "roxxel_curriculum._plan.as_picture"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--plot", str(tmp_path / "plan.png")]) == 1

    assert 'needs matplotlib; pip install "roxxel[plot]"' in capsys.readouterr().err


def test_a_schedule_that_cannot_be_met_is_the_curriculum_s_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path, CONFIG.replace("steps = 4", "steps = 400"))
    config.write_text("max_epochs = 1\n" + config.read_text())

    assert main(["plan", str(config)]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel: {config}: phase 0 needs 400 steps")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("web_*.rox", "nowhere_*.rox"), "nowhere_*.rox"),
        (("seq_len = 16", "seq_len = 'long'"), "phase 1: seq_len of a phase must be"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    sentence: str,
) -> None:
    config = write_project(tmp_path, CONFIG.replace(*change))

    assert main(["plan", str(config)]) == 1

    error = capsys.readouterr().err
    assert error.startswith("roxxel: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_config_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tmp_path / "none.toml")]) == 1

    assert capsys.readouterr().err == (
        f"roxxel: {tmp_path / 'none.toml'}: no such file; give a config file\n"
    )


def test_two_configs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    other = tmp_path / "longer.toml"
    other.write_text(CONFIG.replace("steps = 2", "steps = 5"))

    assert main(["plan", str(other), "--diff", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "batches change from step 6 on" in shown
    assert "phase 1 has 5 steps instead of 2" in shown

    assert main(["plan", str(other), "--diff", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 6


def test_a_config_is_compared_with_a_run_from_its_step_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    run = tmp_path / "run"
    make_checkpoint(run, config, 2)
    edited = CONFIG.replace("self = 0.5, code = 0.5", "self = 0.1, code = 0.9")
    other = tmp_path / "edited.toml"
    other.write_text(edited)

    assert main(["plan", str(other), "--diff", str(run)]) == 0

    shown = capsys.readouterr().out
    assert "batches change from step 2 on" in shown
    assert f"{run}: 2 steps of this run are done." in shown


def test_a_run_is_compared_as_it_was_used_where_its_own_config_is_edited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    run = tmp_path / "run"
    make_checkpoint(run, config, 2)
    own = run / "config.toml"
    own.write_text(
        own.read_text().replace("self = 0.5, code = 0.5", "self = 0.1, code = 0.9")
    )

    assert main(["plan", str(own), "--diff", str(run)]) == 0

    assert "batches change from step 2 on" in capsys.readouterr().out


def test_a_plan_of_a_run_that_has_begun_shows_its_past(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 2)
    config.write_text(
        CONFIG.replace("self = 0.5, code = 0.5", "self = 0.1, code = 0.9")
    )

    assert main(["plan", str(config)]) == 0

    shown = capsys.readouterr().out
    assert "steps 0-1 of 2 x 8" in shown
    assert "steps 2-3 of 2 x 8" in shown
    assert "2 steps of this run are done." in shown


def test_a_changed_past_is_refused_with_its_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 2)
    config.write_text(CONFIG.replace("seed = 3", "seed = 4"))

    assert main(["plan", str(config)]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel: {config}: this state belongs to another past: ")
    assert "seed" in error


def test_a_run_without_a_config_cannot_be_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    (tmp_path / "other").mkdir()

    assert main(["plan", str(config), "--diff", str(tmp_path / "other")]) == 1
    assert "other: holds no run" in capsys.readouterr().err

    (tmp_path / "other" / "metrics.jsonl").write_text("")
    assert main(["plan", str(config), "--diff", str(tmp_path / "other")]) == 1
    assert "holds no config.toml" in capsys.readouterr().err
