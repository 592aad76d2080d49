"""Every command that reads a run reads one whose loop is not ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Checkpointer, Curriculum, Phase, Roxxel, open_run
from roxxel.cli import main
from roxxel_curriculum.run_log import METRICS, RunLog
from roxxel_train.audit import audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRAINED = 4


def declared(tmp_path: Path) -> Curriculum:
    web, code = Roxxel(tmp_path / "web_*.rox"), Roxxel(tmp_path / "code.rox")
    for corpus, seed in ((web, 0), (code, 1)):
        random = np.random.default_rng(seed)
        documents = (random.integers(1, 50, 30) for _ in range(40))
        corpus.write(documents, vocab_size=50, exist="keep")
    phases = [Phase(6, 4, 9, {"self": 1, "code": 1}), Phase(2, 2, 17)]
    return Curriculum(web, phases, {"code": code})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of eight steps, of which a loop has trained four."""
    curriculum = declared(tmp_path)
    sampler = curriculum.sampler(seed=3)
    with RunLog(tmp_path / "run", sampler) as log:
        for step in range(TRAINED):
            log.record(step, sampler.batch(step), loss=3.0 - step / 4)
    return tmp_path / "run"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main([*words]) == code
    return capsys.readouterr().out


def test_run_is_opened_and_its_batches_agree_with_its_log(run: Path) -> None:
    opened = open_run(run)

    assert opened.trained_steps == TRAINED
    assert opened.sampler().total_steps == 8
    assert audit(opened.sampler(), opened.metrics).is_sound


def test_commands_say_what_is_trained_by_the_rows(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("where", str(run), "--document", "self:0", "--json")

    assert "stopped" in said(capsys, "ls", str(run.parent))
    assert "trained" in said(capsys, "show", str(run), "--step", "last")
    for step, is_trained in ((TRAINED - 1, True), (TRAINED, False)):
        shown = said(capsys, "show", str(run), "--step", str(step), "--json")
        assert json.loads(shown)["is_trained"] is is_trained
    found: Any = json.loads(said(capsys, *where))
    assert found
    for corpus in run.parent.glob("*.rox"):
        corpus.unlink()  # The log says what was planned.
    said(capsys, "report", str(run))
    [page] = [*run.glob("*.html"), *run.parent.glob("*.html")]
    assert "8 steps, 284 tokens, 2 phases, 2 sources, seed 3" in page.read_text()


def orbax_steps(folder: Path) -> None:
    """Leave steps as Orbax's manager does, such as MaxText's."""
    for step in (2, 4):
        (folder / str(step) / "state" / "d").mkdir(parents=True)
        (folder / str(step) / "_CHECKPOINT_METADATA").write_text("{}")


def own_steps(folder: Path) -> None:
    """Leave steps as a loop does that saves with our `Checkpointer`."""
    with Checkpointer(folder) as checkpointer:
        for step in (2, 4):
            checkpointer.save(step, {}, state={"weights": np.ones(3)})


@pytest.mark.parametrize("save", [orbax_steps, own_steps])
def test_checkpoints_of_the_loop_beside_the_log_change_no_answer(
    run: Path, save: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [("verify", "--data", str(run)), ("show", str(run), "--step", "last")]
    words.append(("where", str(run), "--document", "self:0"))
    before = [said(capsys, *each) for each in words]

    save(run / "checkpoints")

    assert [said(capsys, *each) for each in words] == before
    assert open_run(run).checkpoints == ()
    assert open_run(run).files.saved_step is None
    assert open_run(run).trained_steps == TRAINED


def test_result_of_a_resumed_loop_has_every_step_once(tmp_path: Path) -> None:
    curriculum = declared(tmp_path)
    sampler = curriculum.sampler(seed=3)
    with RunLog(tmp_path / "run", sampler) as log:
        log.record(0, sampler.batch(0))
        state = log.state()
        log.record(1, sampler.batch(1))
    with RunLog(tmp_path / "run", sampler, state=state) as log:
        for step in range(log.step, sampler.total_steps):
            log.record(step, sampler.batch(step))

    opened = open_run(tmp_path / "run")

    assert [row["step"] for row in opened.metrics] == [*range(1, 9)]
    assert audit(opened.sampler(), opened.metrics).is_sound
    assert opened.files.status == "complete"


def test_a_changed_row_is_found_by_audit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "verify", "--data", str(run))
    log = run / METRICS
    lines = log.read_text().splitlines()
    row = json.loads(lines[2])
    lines[2] = json.dumps({**row, "digest": "0" * 16})
    log.write_text("\n".join(lines) + "\n")

    text = said(capsys, "verify", "--data", str(run), code=3)

    assert "step 1 differs" in text
