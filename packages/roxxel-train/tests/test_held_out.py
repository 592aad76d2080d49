"""Held-out sets stay the sets that a run has measured so far, under their names."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import RunMismatchError, Trainer

from .helpers import VOCABULARY, loss_fn, rows, trainer

if TYPE_CHECKING:
    from pathlib import Path

PHASES = [Phase(6, 4, 9)]


def held_out(folder: Path, seed: int = 1, **options: Any) -> Roxxel:
    """Write the held-out corpus of a run."""
    random = np.random.default_rng(seed)
    corpus = Roxxel(folder / "held_*.rox")
    documents = [random.integers(0, VOCABULARY, 40) for _ in range(4)]
    corpus.write(documents, vocab_size=VOCABULARY, **options)
    return corpus


def one_set(folder: Path, steps: int = 3) -> Curriculum:
    return Curriculum(Roxxel(folder / "held_*.rox"), [Phase(steps, 2, 9)])


def run_of(folder: Path, sets: Any, updates: int = 6, **options: Any) -> Trainer:
    phases = [Phase(updates, 4, 9)]
    options = {"eval_every": 3, "log_every": 3, **options}
    return trainer(folder, phases, eval_curriculum=sets, **options)


def losses(folder: Path) -> list[float]:
    return [row["eval_loss"] for row in rows(folder) if "eval_loss" in row]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a folder with a run that has measured its held-out set twice."""
    held_out(tmp_path)
    run_of(tmp_path, one_set(tmp_path)).run()
    return tmp_path


def test_a_held_out_corpus_that_has_grown_is_read_at_its_first_version(
    begun: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    control = shutil.copytree(begun, tmp_path_factory.mktemp("control") / "same")
    before = one_set(begun).sampler(0).batch(1)
    held_out(begun, seed=2, exist="append")
    assert not np.array_equal(one_set(begun).sampler(0).batch(1), before)

    for folder in (begun, control):
        run_of(folder, one_set(folder), updates=9).run()

    assert len(losses(begun)) == 3
    assert losses(begun) == losses(control)


@pytest.mark.parametrize("name", ["", "web"])
def test_a_held_out_set_that_was_replaced_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    held_out(tmp_path)
    sets: Any = {name: one_set(tmp_path)} if name else one_set(tmp_path)
    run_of(tmp_path, sets).run()
    held_out(tmp_path, seed=2, exist="replace")

    sets = {name: one_set(tmp_path)} if name else one_set(tmp_path)
    with pytest.raises(RunMismatchError) as caught:
        run_of(tmp_path, sets, updates=12)

    for words in ("held-out set", name, "holds other data", "a new name"):
        assert words in str(caught.value)
    assert str(tmp_path / "run") in str(caught.value)


def test_a_held_out_set_of_other_steps_is_an_error(begun: Path) -> None:
    with pytest.raises(RunMismatchError, match="had 3 steps and now has 5"):
        run_of(begun, one_set(begun, steps=5), updates=12)


def test_a_held_out_set_without_other_documents_is_an_error(tmp_path: Path) -> None:
    def masked(model: Any, batch: Any) -> Any:
        count = batch["loss_mask"].sum()
        return loss_fn(model, batch["tokens"]), {"loss_weight": count}

    corpus = held_out(tmp_path)
    options: dict[str, Any] = {"fields": ["tokens", "loss_mask"], "loss_fn": masked}
    run_of(tmp_path, one_set(tmp_path), **options).run()
    withdrawn = Curriculum(corpus, [Phase(3, 2, 9)], without={"self": [0]})

    with pytest.raises(RunMismatchError, match="other documents of 'self' are withd"):
        run_of(tmp_path, withdrawn, updates=9, **options)


def test_a_changed_set_is_accepted_under_a_new_name(begun: Path) -> None:
    held_out(begun, seed=2, exist="replace")
    sets = {"second": one_set(begun)}

    with pytest.raises(RunMismatchError, match="best_metric='eval_loss/second'"):
        run_of(begun, sets, updates=12)
    one = run_of(begun, sets, updates=12, best_metric="eval_loss/second")
    one.run()

    assert len(losses(begun)) == 4
    assert one.checkpointer is not None
    assert one.checkpointer.best_step in {8, 12}
    # From then on the new set is pinned, and no argument is needed.
    run_of(begun, sets, updates=15).run()


def test_a_run_without_a_checkpoint_keeps_the_set_of_its_first_start(
    tmp_path: Path,
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("lost")

    held_out(tmp_path)
    first = run_of(tmp_path, one_set(tmp_path), eval_fn=fail, checkpoint_every=100)
    with pytest.raises(RuntimeError, match="lost"):
        first.run()
    for step in (tmp_path / "run" / "checkpoints").glob("[0-9]*"):
        step.rename(tmp_path / f"lost-{step.name}")
    held_out(tmp_path, seed=2, exist="replace")

    with pytest.raises(RunMismatchError, match="held-out set"):
        run_of(tmp_path, one_set(tmp_path))


def test_a_set_may_be_added_and_left_out(begun: Path) -> None:
    with pytest.raises(RunMismatchError, match="ranks its checkpoints by 'eval_loss'"):
        run_of(begun, {"a": one_set(begun), "b": one_set(begun)}, updates=12)

    run_of(begun, None, updates=9, eval_every=None).run()
    run_of(begun, one_set(begun), updates=12).run()

    assert len(losses(begun)) == 3


def test_a_set_that_another_program_has_begun_meanwhile_is_an_error(
    tmp_path: Path,
) -> None:
    held_out(tmp_path)
    late = run_of(tmp_path, one_set(tmp_path))
    run_of(tmp_path, one_set(tmp_path, steps=2)).run()

    with pytest.raises(RunMismatchError, match="another program has changed it"):
        late.run()


def test_a_set_that_was_trained_on_is_said_in_preflight_and_at_the_start(
    tmp_path: Path,
) -> None:
    trained = trainer(tmp_path, PHASES).curriculum.primary_streamer
    one = run_of(tmp_path, {"web": Curriculum(trained, [Phase(2, 2, 9)])})

    (note,) = one.preflight().notes
    one.run()

    assert "held-out set 'web', source 'self' is the training corpus" in note
    assert note in (tmp_path / "run" / "system.log").read_text()


def test_a_set_of_another_tokenizer_is_an_error(tmp_path: Path) -> None:
    text = Roxxel(tmp_path / "text.rox")
    text.write(["some text " * 30], tokenizer="bytes")
    ids = Roxxel(tmp_path / "ids.rox")
    ids.write([np.arange(900)], vocab_size=900)
    options: dict[str, Any] = {"curriculum": Curriculum(ids, PHASES)}

    with pytest.raises(ValueError, match=r"held-out source 'self' .*different text"):
        run_of(tmp_path, Curriculum(text, [Phase(2, 2, 9)]), **options)
