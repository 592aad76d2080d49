from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from roxxel.cli import main
from roxxel.config import EvalConfig, RunConfig, load_config
from roxxel.quickstart.folder import new_config
from roxxel_curriculum import Phase, Schedule
from roxxel_train import RunFolder

from .helpers import write_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.first

# One head: attention over 1024 tokens takes most of the time.
SIZES = {"width": 8, "num_layers": 1, "hidden": 8, "num_heads": 1, "num_kv_heads": 1}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Train 4 steps of a small quickstart; return its folder and what it said.

    A test that changes the run changes a copy. Later quickstarts are small too.
    """
    from roxxel.models import PRESETS, LlamaConfig

    def small(*arguments: Any) -> RunConfig:
        return replace(
            new_config(*arguments),
            eval=EvalConfig(
                {"self": ("data/held_out.rox",)}, Schedule((Phase(1, 1, 129),))
            ),
        )

    folder = tmp_path_factory.mktemp("quickstart")
    write_library(folder / "library", 120)
    smaller = functools.partial(LlamaConfig.tiny, **SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roxxel.quickstart.run.find_library", lambda: folder / "library")
        patch.setattr("roxxel.quickstart.run.new_config", small)
        patch.setitem(PRESETS, "tiny", smaller)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            assert main(quickstart(folder / "run", "--steps", "4")) == 0
        yield folder / "run", printed.getvalue()


def quickstart(out: Path, *options: str) -> list[str]:
    return ["quickstart", "--out", str(out), *options]


def contents(out: Path) -> dict[str, bytes]:
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def rows(out: Path) -> list[dict[str, Any]]:
    return RunFolder(out).rows()[0]


def phase_steps(out: Path) -> list[int | None]:
    return [p.steps for p in load_config(out / "config.toml").schedule.phases]


def test_a_run_is_planned_trained_and_lengthened(
    begun: tuple[Path, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, said = begun
    assert "8 x 257" in said
    assert "1 x 1025" in said
    assert "Held-out loss: 5." in said
    assert "after 4 steps (5.55 for a uniform guess)" in said
    assert "--steps 8" in said
    assert phase_steps(first) == [2, 2]

    out = tmp_path / "run"
    shutil.copytree(first, out)
    config = out / "config.toml"
    text = config.read_text()
    assert main(["report", str(out)]) == 0
    capsys.readouterr()

    assert main(quickstart(out, "--steps", "6")) == 0
    assert "Done: 2 steps" in capsys.readouterr().out
    assert phase_steps(out) == [2, 4]
    assert config.read_text() == "steps = 4\n".join(text.rsplit("steps = 2\n", 1))
    trained = [row["step"] for row in rows(out) if row["kind"] == "train"]
    assert trained == [1, 2, 3, 4, 5, 6]

    assert main(quickstart(out, "--steps", "2", "--fresh")) == 0
    assert "Done: 2 steps" in capsys.readouterr().out
    assert phase_steps(out) == [1, 1]
    assert not (out / "report.html").exists()


def test_a_signal_in_the_last_step_ends_a_complete_run(
    begun: tuple[Path, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(begun[0], out)
    config = out / "config.toml"
    config.write_text(
        config.read_text().replace("[trainer]", '[trainer]\neval_fn = "ending:stop"')
    )
    (out / "ending.py").write_text(
        "import signal\n\n\ndef stop(state):\n"
        "    if int(state.step[...]) == 6:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
    )

    assert main(quickstart(out, "--steps", "6")) == 0

    shown = capsys.readouterr().out
    assert "SIGTERM came in step 6, the last" in shown
    assert "--steps 12" in shown


def test_a_complete_run_can_be_planned_and_trained_by_its_config(
    begun: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = begun
    config = out / "config.toml"
    text = config.read_text()
    shown = re.findall(r": +(?:uv run )?roxxel (.*)", said)  # as it was itself started
    farewell = [shlex.split(line) for line in shown]
    by_name = {words[0]: words for words in farewell}
    assert by_name["report"] == ["report", str(out)]
    assert main(by_name["format"]) == 0  # data/ holds three corpora, so it names one
    assert "documents" in capsys.readouterr().out

    assert main(["plan", str(config)]) == 0
    planned = capsys.readouterr().out
    assert "4 steps of this run are done." in planned
    assert planned.splitlines()[0] in said
    assert main(["train", str(config)]) == 0
    assert "already complete: 4 steps" in capsys.readouterr().out
    assert main(quickstart(out)) == 0
    assert "already complete" in capsys.readouterr().out
    assert config.read_text() == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", "3"), r"was started with --steps 4, and 3 is less"),
        (("--steps", "1000000"), r"--steps 1000000: phase .*epochs"),
    ],
)
def test_steps_that_cannot_be_are_one_sentence_and_leave_the_run(
    begun: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    out, _ = begun
    before = contents(out)

    code = main(quickstart(out, *options))

    error = capsys.readouterr().err
    assert code == 1
    assert re.match(f"roxxel: .*{said}", error)
    assert error.count("\n") == 1
    assert contents(out) == before


def test_a_missing_corpus_is_one_sentence(
    begun: tuple[Path, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(begun[0], out)
    (out / "data" / "library.rox").unlink()

    assert main(quickstart(out)) == 1

    assert "library.rox: this training file of the run is missing" in (
        capsys.readouterr().err
    )


def test_the_command_prints_plain_lines_and_no_warning(begun: tuple[Path, str]) -> None:
    out, said = begun
    lines = said.replace(str(out.parent), "").splitlines()

    assert not [line for line in lines if "\r" in line or "arning" in line]
    ours = [line for line in lines if "  " not in line.strip()]
    assert [line for line in ours if len(line) > 80] == []
