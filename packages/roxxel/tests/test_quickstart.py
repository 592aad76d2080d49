from __future__ import annotations

import functools
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.cli import main
from roxxel.config import load_config
from roxxel_train import RunFolder

from .helpers import run_python, write_library

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def small_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the quickstart quick: a made-up library and a tiny model."""
    from roxxel.models import PRESETS, LlamaConfig

    write_library(tmp_path / "library", 150)
    monkeypatch.setattr(
        "roxxel.quickstart.run.find_library", lambda: tmp_path / "library"
    )
    smaller = functools.partial(LlamaConfig.tiny, width=8, num_layers=1, hidden=8)
    monkeypatch.setitem(PRESETS, "tiny", smaller)
    return tmp_path / "run"


def contents(out: Path) -> dict[str, bytes]:
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def rows(out: Path) -> list[dict[str, Any]]:
    return RunFolder(out).rows()[0]


def phase_steps(out: Path) -> list[int | None]:
    return [p.steps for p in load_config(out / "config.toml").schedule.phases]


def test_a_run_is_planned_trained_lengthened_and_complete(
    small_quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_quickstart
    command = ["quickstart", "--out", str(out)]

    assert main([*command, "--steps", "4"]) == 0
    first = capsys.readouterr().out
    assert "8 x 257" in first
    assert "1 x 1025" in first
    assert "Held-out loss: 5." in first
    assert "after 4 steps (5.55 for a uniform guess)" in first
    assert "--steps 8" in first
    assert phase_steps(out) == [2, 2]

    assert main(command) == 0
    assert "already complete" in capsys.readouterr().out

    assert main([*command, "--steps", "3"]) == 1
    assert "was started with --steps 4, and 3 is less" in capsys.readouterr().err

    assert main([*command, "--steps", "6"]) == 0
    assert "Done: 2 steps" in capsys.readouterr().out
    assert phase_steps(out) == [2, 4]
    trained = [row["step"] for row in rows(out) if row["kind"] == "train"]
    assert trained == [1, 2, 3, 4, 5, 6]

    assert main([*command, "--steps", "2", "--fresh"]) == 0
    assert "Done: 2 steps" in capsys.readouterr().out
    assert phase_steps(out) == [1, 1]


def test_its_run_can_be_planned_trained_and_reported_by_its_config(
    small_quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_quickstart
    config = out / "config.toml"
    assert main(["quickstart", "--out", str(out), "--steps", "3"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r": +(?:uv run )?roxxel (.*)", said)  # as it was itself started
    farewell = [shlex.split(line) for line in shown]
    by_name = {words[0]: words for words in farewell}
    assert by_name["report"] == ["report", str(out)]
    assert main(by_name["format"]) == 0  # data/ holds three corpora, so it names one
    assert "documents" in capsys.readouterr().out
    begun = config.read_text()

    assert main(["plan", str(config)]) == 0
    planned = capsys.readouterr().out
    assert "3 steps of this run are done." in planned
    assert planned.splitlines()[0] in said
    assert main(["train", str(config)]) == 0
    assert "already complete: 3 steps" in capsys.readouterr().out
    assert main(["report", str(out)]) == 0

    assert main(["quickstart", "--out", str(out)]) == 0
    assert config.read_text() == begun
    assert main(["quickstart", "--out", str(out), "--steps", "4"]) == 0
    assert config.read_text() == begun.replace("steps = 1\n", "steps = 2\n")
    assert main(["quickstart", "--out", str(out), "--steps", "2", "--fresh"]) == 0
    assert not (out / "report.html").exists()


@pytest.mark.parametrize("extra", [[], ["--fresh"]])
def test_more_epochs_than_allowed_are_one_sentence_and_leave_the_run(
    small_quickstart: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    out = small_quickstart
    assert main(["quickstart", "--out", str(out), "--steps", "2"]) == 0
    before = contents(out)
    capsys.readouterr()

    code = main(["quickstart", "--out", str(out), "--steps", "1000000", *extra])

    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("roxxel: --steps 1000000: phase ")
    assert error.count("\n") == 1
    assert "epochs" in error
    assert contents(out) == before


def test_a_missing_corpus_is_one_sentence(
    small_quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_quickstart
    assert main(["quickstart", "--out", str(out), "--steps", "2"]) == 0
    (out / "data" / "library.rox").unlink()
    capsys.readouterr()

    assert main(["quickstart", "--out", str(out)]) == 1

    assert "library.rox: this training file of the run is missing" in (
        capsys.readouterr().err
    )


def test_the_command_prints_plain_lines_and_no_warning(tmp_path: Path) -> None:
    write_library(tmp_path / "library", 150)
    program = (
        "import functools, pathlib, sys\n"
        "from roxxel.cli import main\n"
        "from roxxel.quickstart import run\n"
        "from roxxel.models import PRESETS, LlamaConfig\n"
        "sizes = {'width': 8, 'num_layers': 1, 'hidden': 8}\n"
        "run.find_library = lambda: pathlib.Path('library')\n"
        "PRESETS['tiny'] = functools.partial(LlamaConfig.tiny, **sizes)\n"
        "sys.exit(main(['quickstart', '--steps', '2']))\n"
    )

    done = run_python("-W", "error", "-c", program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "roxxel quickstart --steps 4" in done.stdout
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert not [line for line in lines if "\r" in line or "arning" in line]
    ours = [line for line in lines if "  " not in line.strip()]
    assert [line for line in ours if len(line) > 80] == []
