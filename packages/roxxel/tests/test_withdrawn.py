"""Withdrawn documents on the command line: plan, train, where and show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import load_config, open_sampler
from roxxel_format import Roxxel

from .runs import llama_config, said

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = '[without]\nself = "withdrawn.txt"\n'
FIELDS = '["tokens", "segment_ids", "loss_mask"]'


def config_of(folder: Path, steps: int, fields: str = FIELDS, end: str = "") -> Path:
    return llama_config(folder, steps, f"fields = {fields}\n{end}")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of 8 steps, which withdrew documents at step 4."""
    folder = tmp_path_factory.mktemp("project")
    random = np.random.default_rng(0)
    Roxxel(folder / "web_*.rox").write(
        (random.integers(0, 64, 24) for _ in range(300)), vocab_size=64
    )
    assert main(["train", str(config_of(folder, 4))]) == 0
    even = "\n".join(map(str, range(0, 300, 2)))
    (folder / "withdrawn.txt").write_text(even)
    assert main(["train", str(config_of(folder, 8, end=WITHOUT))]) == 0
    return folder


def test_the_log_and_the_plan_say_from_which_step(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (project / "run" / "system.log").read_text()
    assert "step 4: " in log
    assert " documents of self withdrawn: loss_mask is 0 on the tokens" in log

    trained = config_of(project, 8, end=WITHOUT)
    other = config_of(project, 9, end="[without]\nself = [[0, 50]]\n")
    diff = said(capsys, "plan", other, "--diff", trained)
    plan = said(capsys, "plan", other)

    assert "withdrawn of source 'self' from step 8 on: 50 documents instead of" in diff
    assert "from step 8 on, 50 documents of self are withdrawn" in " ".join(
        plan.split()
    )


def test_where_says_since_when_a_document_is_masked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "where", project / "run", "--document", "self:150")
    [found] = map(
        json.loads,
        said(
            capsys, "where", project / "run", "--document", "self:150", "--json"
        ).splitlines(),
    )
    other = said(capsys, "where", project / "run", "--document", "self:151")

    assert "  document 150 is withdrawn from step 4 on: its tokens are masked" in text
    assert found["withdrawn"] == {"150": [[4, 8]]}
    assert "withdrawn" not in other


def test_show_marks_the_masked_tokens_of_trained_steps(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = open_run(project / "run").sampler(["loss_mask"])

    for step in range(8):
        shown = json.loads(
            said(capsys, "show", project / "run", "--step", step, "--json")
        )
        mask = np.ones((4, 33), np.int32)
        for row in shown["rows"]:
            for start, stop in row.get("masked", ()):
                mask[row["row"], start - row["start"] : stop - row["start"]] = 0
        assert np.array_equal(mask, sampler.batch(step)["loss_mask"])
        assert mask.all() == (step < 4)
    text = said(capsys, "show", project / "run", "--step", 5)
    assert "  masked, so not learned: tokens [" in text
    assert main(["verify", "--data", str(project / "run")]) == 0


def test_a_missing_file_of_documents_is_one_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(project, 8, end='[without]\nself = "gone.txt"\n')

    assert main(["plan", str(config)]) == 1

    assert capsys.readouterr().err == (
        f"roxxel: {project / 'gone.txt'}: does not exist, but should list the "
        "withdrawn documents of source 'self'; correct the path, or write the file "
        "with one number on each line\n"
    )


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_config_without_the_mask_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    config = config_of(project, 8, fields='["tokens"]', end=WITHOUT)

    assert main([command, str(config)]) == 1

    assert "give fields = ['tokens', 'loss_mask']" in capsys.readouterr().err


def test_open_sampler_gives_the_fields_of_the_config(project: Path) -> None:
    config = config_of(project, 8, end=WITHOUT)

    batch: Any = open_sampler(load_config(config)).batch(5)

    assert set(batch) == {"tokens", "segment_ids", "loss_mask"}


def test_a_model_that_asks_for_the_steps_trains_without_the_documents(
    project: Path,
) -> None:
    config = config_of(project, 8, end=WITHOUT)
    text = config.read_text().replace("total_steps = 8\n", "")
    config.write_text(text.replace('save_path = "run"', 'save_path = "scheduled"'))

    assert main(["train", str(config)]) == 0

    assert open_run(project / "scheduled").sampler().withdrawals[0].step == 0
