"""What a run says about itself in `system.log` and on the terminal."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_ckpt import CheckpointBucketError, Checkpointer, CheckpointError
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import ModelState, Preempted

from .helpers import VOCABULARY, corpus, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train import Trainer

OF_PHASE_2 = (
    "step 12: phase 2 begins: 2 steps of 2 x 16 tokens, self 100%; "
    "code has no data left"
)
REPEATS = "(begins its 2nd epoch at step 11)"
SECOND_EPOCH = "step 11: self begins its 2nd epoch (epoch 1): its tokens repeat"
BY_THE_CLOCK = re.compile("compil(ing|ed) for batches of|wall time: ")


def source(folder: Path, name: str, num_tokens: int) -> Roxxel:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, num_tokens)
    one = Roxxel(folder / f"{name}.rox")
    one.write([tokens], vocab_size=VOCABULARY, separator=None)
    return one


def of_two_sources(folder: Path, **options: Any) -> Trainer:
    """Return a trainer of three phases; both sources repeat, one runs out."""
    curriculum = Curriculum(
        source(folder, "web", 256),
        [
            Phase(4, 4, 8),
            Phase(8, 4, 8, {"self": 1, "code": 1}),
            Phase(2, 2, 16, {"self": 3, "code": 1}),
        ],
        {"code": source(folder, "code", 96)},
    )
    return trainer(folder, curriculum=curriculum, **options)


def log(folder: Path) -> list[str]:
    """Return the texts of `system.log` without what depends on the clock."""
    lines = (folder / "run" / "system.log").read_text().splitlines()
    texts = [line.split(maxsplit=2)[2] for line in lines if " INFO " in line]
    shown = [text for text in texts if not BY_THE_CLOCK.match(text)]
    return [re.sub(r"(resumed .*) in [\d.]+ s", r"\1", text) for text in shown]


def test_run_says_what_it_reads_and_when_that_changes(tmp_path: Path) -> None:
    of_two_sources(tmp_path).run()

    assert log(tmp_path) == [
        "starts: 14 steps in 3 phases",
        f"epochs to read: self 1.75 {REPEATS}, code 1",
        "step 0: phase 0 begins: 4 steps of 4 x 8 tokens, self 100%",
        "step 4: phase 1 begins: 8 steps of 4 x 8 tokens, self 50%, code 50%",
        "step 9: code runs out; then self 100%",
        SECOND_EPOCH,
        OF_PHASE_2,
        "complete: 14 of 14 steps are done; step 14 is saved",
    ]


def test_terminal_shows_the_same_lines_between_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_two_sources(tmp_path, save_path=None).run()

    shown = capsys.readouterr().err.splitlines()
    assert f"epochs to read: self 1.75 {REPEATS}, code 1" in shown
    assert SECOND_EPOCH in shown
    assert shown[-1] == "complete: 14 of 14 steps are done; nothing is saved"


def test_lines_and_rows_are_in_order_of_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def saves(state: ModelState) -> None:
        if int(state.step[...]) == 5:
            one.save()

    one = of_two_sources(tmp_path, log_every=1, eval_fn=saves, eval_every=5)
    one.run()

    shown = capsys.readouterr().err.splitlines()
    steps = [line.replace("/14 ", ":") for line in shown if line.startswith("step ")]
    numbers = [int(line.removeprefix("step ").split(":")[0]) for line in steps]
    assert numbers == sorted(numbers)
    assert len(numbers) == 14 + 9
    # The row of step k is the loss of the update before the lines of step k.
    assert [line[:16] for line in shown if line.startswith("step 4")] == [
        "step 4/14  loss ",
        "step 4: phase 1 ",
    ]


def test_run_that_ends_early_names_the_declared_steps(tmp_path: Path) -> None:
    curriculum = Curriculum(
        source(tmp_path, "short", 320),
        [Phase(30, 4, 8)],
        policies={"self": "stop"},
        skips=[(10, 3)],
    )
    trainer(tmp_path, curriculum=curriculum).run()
    trainer(tmp_path, curriculum=curriculum).run()

    why = (
        "source 'self' runs out in phase 0 and its policy stops the run before step 10 "
        "of the 30 declared"
    )
    lines = log(tmp_path)
    assert lines[0] == "starts: 10 steps in 1 phase"
    assert f"ends early: {why}" in lines
    complete = f"complete: 10 of 10 steps are done, because {why}"
    assert lines[-2:] == [f"{complete}; step 10 is saved", f"already {complete}"]
    assert not any("skips the data" in line for line in lines)


def test_resumed_run_says_where_it_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    def stops(state: ModelState) -> None:
        if int(state.step[...]) == 9:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        of_two_sources(tmp_path, eval_fn=stops, eval_every=9).run()
    before = log(tmp_path)
    of_two_sources(tmp_path).run()

    assert before[-1] == (
        "SIGTERM ended the run after step 9; start the run again to continue"
    )
    text = (tmp_path / "run" / "system.log").read_text()
    assert re.search(r"resumed from step 9 of 14 in \d+\.\d\d s\n", text)
    assert re.findall(r"wall time: \S+ % of \S+ (?:s|min) in steps kept", text)
    assert log(tmp_path)[len(before) :] == [
        "resumed from step 9 of 14",
        f"epochs read so far: self 0.812 of 1.75 {REPEATS}, code 0.833 of 1",
        "step 9: phase 1 continues: 3 steps of 4 x 8 tokens, self 50%, code 50%",
        "step 9: code runs out; then self 100%",
        SECOND_EPOCH,
        OF_PHASE_2,
        "complete: 14 of 14 steps are done; step 14 is saved",
    ]


def test_phase_that_an_edit_changes_in_the_middle_says_that_it_is_edited(
    tmp_path: Path,
) -> None:
    def stops(state: ModelState) -> None:
        if int(state.step[...]) == 4:
            signal.raise_signal(signal.SIGTERM)

    web, code = source(tmp_path, "web", 512), source(tmp_path, "code", 512)

    def with_weights(weights: dict[str, int], **options: Any) -> Trainer:
        curriculum = Curriculum(web, [Phase(8, 4, 8, weights)], {"code": code})
        return trainer(tmp_path, curriculum=curriculum, **options)

    with pytest.raises(Preempted):
        with_weights({"self": 1, "code": 1}, eval_fn=stops, eval_every=4).run()
    before = len(log(tmp_path))
    with_weights({"self": 3, "code": 1}).run()

    assert log(tmp_path)[before:] == [
        "resumed from step 4 of 8",
        "epochs read so far: self 0.125 of 0.312, code 0.125 of 0.188",
        (
            "step 4: phase 0 continues, edited: "
            "4 steps of 4 x 8 tokens, self 75%, code 25%"
        ),
        "complete: 8 of 8 steps are done; step 8 is saved",
    ]


def test_evaluation_is_a_line_with_its_duration_values_and_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"score": 0.125, "text": "Once\nupon a time"}
    held_out = Curriculum(corpus(tmp_path), [Phase(2, 4, 9)])
    trainer(
        tmp_path, eval_fn=lambda _: values, eval_every=5, eval_curriculum=held_out
    ).run()

    expected = (
        r"step 5: evaluated in \d+\.\d s, eval_loss 2\.\d+, (eval_perplexity \S+, )?"
        "score 0.125; Once\nupon a time\n"
    )
    text = (tmp_path / "run" / "system.log").read_text()
    assert len(re.findall(" INFO " + expected, text)) == 1
    assert len(re.findall(expected, capsys.readouterr().err)) == 1


def test_evaluation_that_returns_nothing_is_a_line_too(tmp_path: Path) -> None:
    trainer(tmp_path, eval_fn=lambda _: None, eval_every=5).run()

    text = "\n".join(log(tmp_path))
    assert re.findall(r"step (\d+): evaluated in \d+\.\d s\n", text) == ["5", "10"]


def test_save_on_request_is_a_line(tmp_path: Path) -> None:
    def saves(state: ModelState) -> None:
        if int(state.step[...]) == 5:
            one.save()

    one = trainer(tmp_path, eval_fn=saves, eval_every=5)
    one.run()

    assert "step 5: saves a checkpoint on request" in log(tmp_path)


def test_error_that_ends_a_run_is_a_line_with_what_is_saved(tmp_path: Path) -> None:
    def fails(state: ModelState) -> None:
        raise RuntimeError(f"evaluation failed at step {int(state.step[...])}")

    with pytest.raises(RuntimeError, match="at step 7"):
        trainer(tmp_path, eval_fn=fails, eval_every=7).run()

    assert log(tmp_path)[-1] == "RuntimeError ended the run; step 7 is saved"
    text = (tmp_path / "run" / "system.log").read_text()
    assert " ERROR the run ended with an error\nTraceback" in text


@pytest.mark.parametrize(
    "error",
    [CheckpointBucketError("s3://data: no answer"), OSError(5, "a server is gone")],
)
def test_checkpoints_that_cannot_be_read_at_the_end_hide_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def unreadable(_: Checkpointer) -> list[int]:
        raise error

    def fails(_: ModelState) -> None:
        monkeypatch.setattr(Checkpointer, "steps", unreadable)
        raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        trainer(tmp_path, eval_fn=fails, eval_every=7).run()

    lines = log(tmp_path)
    assert lines[-1].startswith("RuntimeError ended the run; which step is saved")
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"kind": "end"' in metrics.splitlines()[-1]


def test_error_of_ours_is_one_line_of_the_log(tmp_path: Path) -> None:
    one = trainer(tmp_path, [Phase(2, 4, 9)])
    one.run()
    for array in (tmp_path / "run" / "checkpoints" / "2").rglob("*"):
        if array.is_file() and array.parent.name != "2":
            array.write_bytes(b"damaged")

    with pytest.raises(CheckpointError) as ended:
        one.run()

    text = (tmp_path / "run" / "system.log").read_text()
    assert "Traceback" not in text
    line = f"the run ended with an error: {type(ended.value).__name__}: "
    assert f" ERROR {line}" in text


def test_save_that_fails_is_a_line_and_is_not_said_to_be_there(
    tmp_path: Path,
) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"

    def blocks(state: ModelState) -> None:
        if int(state.step[...]) == 5:
            shutil.rmtree(checkpoints)
            checkpoints.write_text("a file where the checkpoints should be")

    one = trainer(tmp_path, checkpoint_every=5, eval_fn=blocks, eval_every=5)
    with pytest.raises(Exception, match="checkpoints") as caught:
        one.run()

    kind = caught.type.__name__
    assert log(tmp_path)[-1] == f"{kind} ended the run; nothing is saved"
    text = (tmp_path / "run" / "system.log").read_text()
    assert f"WARNING step 5 could not be saved after {kind}: " in text


def test_source_of_many_epochs_has_a_line_no_more_often_than_a_row(
    tmp_path: Path,
) -> None:
    curriculum = Curriculum(source(tmp_path, "tiny", 32), [Phase(10, 8, 8)])
    trainer(tmp_path, curriculum=curriculum, log_every=4).run()

    assert [line for line in log(tmp_path) if "tokens repeat" in line] == [
        "step 0: self begins its 2nd epoch (epoch 1): its tokens repeat",
        "step 4: self begins its 10th epoch (epoch 9): its tokens repeat",
        "step 8: self begins its 18th epoch (epoch 17): its tokens repeat",
    ]


def test_complete_run_says_so_and_nothing_else(tmp_path: Path) -> None:
    of_two_sources(tmp_path).run()
    before = log(tmp_path)
    of_two_sources(tmp_path).run()

    assert log(tmp_path)[len(before) :] == ["already complete: 14 of 14 steps are done"]


def test_a_run_without_a_folder_says_that_nothing_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(tmp_path, [Phase(1, 4, 9)], save_path=None).run()
    assert "nothing is saved: " in capsys.readouterr().err
    trainer(tmp_path, [Phase(1, 4, 9)]).run()
    assert "nothing is saved: " not in capsys.readouterr().err
