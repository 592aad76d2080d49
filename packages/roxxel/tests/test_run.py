"""A run is read from its folder alone, and shows what was trained."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roxxel
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer, open_run
from roxxel.cli import main
from roxxel.config import load_config
from roxxel_train import RunFolderError, RunMismatchError

from .runs import CONFIG, keep, write_project

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 50


def loss_fn(model: Any, batch: Any) -> Any:
    return jnp.square(model(batch) - 1.0).mean()


def model_of(seed: int = 0) -> nnx.Embed:
    return nnx.Embed(VOCABULARY, 2, rngs=nnx.Rngs(seed))


def curriculum(folder: Path, *phases: Phase) -> Curriculum:
    web, code = Roxxel(folder / "web_*.rox"), Roxxel(folder / "code.rox")
    for corpus, seed in ((web, 0), (code, 1)):
        random = np.random.default_rng(seed)
        documents = (random.integers(1, VOCABULARY, 30) for _ in range(40))
        corpus.write(documents, vocab_size=VOCABULARY, exist="keep")
    return Curriculum(web, phases, {"code": code})


def trained(folder: Path, *phases: Phase) -> Trainer:
    """Train a run by a Python program."""
    model = model_of()
    one = Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        curriculum(folder, *phases),
        loss_fn,
        folder / "run",
        log_every=1,
        checkpoint_every=3,
    )
    one.run()
    return one


def same(first: Any, second: Any, steps: range) -> bool:
    return all(np.array_equal(first.batch(k), second.batch(k)) for k in steps)


FIRST = Phase(6, 4, 9, {"self": 1, "code": 1})
EDITED = (Phase(9, 4, 9, {"self": 3, "code": 1}), Phase(4, 2, 17))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer]:
    """Return the folder of a run that a Python program trained, and its trainer."""
    folder = tmp_path_factory.mktemp("program")
    return folder, trained(folder, FIRST)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that `roxxel train` trained from a config."""
    config = write_project(tmp_path_factory.mktemp("config"))
    assert main(["train", str(config)]) == 0
    return config.parent / "run"


def test_past_steps_are_those_that_were_trained_whatever_was_edited(
    tmp_path: Path,
) -> None:
    first = trained(tmp_path, FIRST)
    second = trained(tmp_path, *EDITED)
    more = [[7] * 50] * 50
    Roxxel(tmp_path / "web_*.rox").write(more, vocab_size=50, exist="append")

    run = open_run(tmp_path / "run")

    sampler = run.sampler()
    assert sampler.total_steps == run.trained_steps == 13
    assert same(sampler, first.sampler, range(6))
    assert same(sampler, second.sampler, range(13))
    new = curriculum(tmp_path, *EDITED).sampler(0)
    assert not same(sampler, new, range(6))
    assert run.corpora()["self"].num_tokens == 1200
    assert run.checkpoints[-1].step == 13
    assert [row["step"] for row in run.metrics if row["kind"] == "train"][-1] == 13
    assert run.config is None


def test_the_model_of_a_run_has_the_weights_of_a_checkpoint(
    finished: tuple[Path, Trainer],
) -> None:
    folder, one = finished
    run = open_run(str(folder / "run"))
    live: Any = one.model

    restored = run.model(model=model_of(1))

    assert np.array_equal(restored.embedding[...], live.embedding[...])
    earlier = run.model(3, model=model_of(1))
    assert not np.array_equal(earlier.embedding[...], restored.embedding[...])
    with pytest.raises(RunFolderError, match="give --model MODULE:FUNCTION"):
        run.model()


def test_a_run_of_a_config_knows_its_model(configured: Path) -> None:
    run = open_run(configured)

    assert run.config is not None
    assert run.config.seed == 3
    # Another program may be saving here.
    staged = configured / "checkpoints" / "7.1-9-0123456789abcdef"
    staged.mkdir()
    assert run.model().embedding.shape == (50, 2)
    assert staged.is_dir()
    staged.rmdir()
    assert run.sampler().total_steps == 6
    assert run.sampler().source_names == ("self", "code")


def test_a_corpus_that_moved_is_named_and_can_be_given(
    finished: tuple[Path, Trainer], tmp_path: Path
) -> None:
    folder, one = finished
    path = tmp_path / "run"
    shutil.copytree(folder / "run", path)
    log = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(log.replace("code.rox", "gone.rox"))

    with pytest.raises(RunFolderError) as info:
        open_run(path).sampler()

    assert str(info.value).startswith(f"{path}: source 'code' of the run cannot be op")
    assert str(info.value).endswith(
        "pass sources={'code': path}, or --source code=PATH, if it moved"
    )
    code = folder / "code.rox"
    for given in (code, [str(code)], Roxxel(code)):
        run = open_run(path, sources={"code": given})
        assert same(run.sampler(), one.sampler, range(6))
    with pytest.raises(RunFolderError, match="those of the run: source"):
        open_run(path, sources={"code": folder / "web_*.rox"}).sampler()
    with pytest.raises(RunFolderError, match=r"no source 'cod'; its sources are 'sel"):
        open_run(path, sources={"cod": code}).sampler()


def test_a_run_without_its_log_says_how_to_get_it_back(
    configured: Path,
) -> None:
    path = configured.with_name("bare")
    shutil.copytree(configured, path)
    (path / "metrics.jsonl").unlink()

    with pytest.raises(RunFolderError, match=r"no row of a start.*start the run again"):
        open_run(path).sampler()


@pytest.mark.parametrize("broken", ['"seed": 4', '"sources": 3', '"sources": [3]'])
def test_a_row_of_a_start_with_other_data_is_one_clear_error(
    broken: str, configured: Path
) -> None:
    path = configured.with_name("broken")
    shutil.copytree(configured, path, dirs_exist_ok=True)
    log = path / "metrics.jsonl"
    name = broken.partition(":")[0]
    value = r"\d+" if name == '"seed"' else r"\[\{.*?\}\]"
    text, count = re.subn(f"{name}: {value}(?=, )", broken, log.read_text())
    assert count
    log.write_text(text)

    run = open_run(path)
    for use in (run.fingerprints, run.sampler, run.corpora):
        with pytest.raises(RunMismatchError, match=f"{log}: the row of the newest st"):
            use()


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()

    with pytest.raises(RunFolderError, match=r"neither run\.json nor a checkpoint"):
        open_run(tmp_path).sampler()
    with pytest.raises(RunFolderError, match="there is no such folder"):
        roxxel.open_run(tmp_path / "nowhere")


def test_a_primary_with_a_name_moves(tmp_path: Path) -> None:
    text = 'primary = "web"\n' + CONFIG.replace("self =", "web =")
    config = load_config(write_project(tmp_path, text))
    run = tmp_path / "run"
    keep(config, run)

    moved = open_run(run, {"web": "/moved/web.rox"}).with_moved(config)
    assert moved.sources == {**config.sources, "web": ("/moved/web.rox",)}

    reader: Any = object()
    with pytest.raises(RunFolderError, match=r"source 'web' .* give its path"):
        open_run(run, {"web": reader}).with_moved(config)
