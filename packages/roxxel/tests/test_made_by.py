"""A model of `roxxel.models` says who made it, so a run's folder makes it again."""

from __future__ import annotations

import json
import shutil
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType
from roxxel import (
    Curriculum,
    Phase,
    Roxxel,
    RunFolderError,
    Trainer,
    open_run,
    replay,
    verify,
)
from roxxel.cli import main
from roxxel.config import MeshConfig, load_config, make_trainer
from roxxel.models import Llama, LlamaConfig, llama, next_token_loss, remade
from roxxel.runs.again import config_of
from roxxel_train import RunFolder

from .runs import said

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.first

SIZES: dict[str, Any] = {"width": 16, "hidden": 32, "num_layers": 1, "num_heads": 2}


def curriculum(folder: Path) -> Curriculum:
    corpus = Roxxel(folder / "tea_*.rox")
    texts = (f"tea {number} is green or black" for number in range(40))
    corpus.write(texts, tokenizer="bytes", exist="keep")
    return Curriculum(corpus, [Phase(2, batch_size=2, seq_len=17)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    rope = {"kind": "linear", "factor": np.float32(2.0)}
    model, optimizer, loss_fn = llama(
        preset="tiny",
        total_steps=2,
        ema=0.5,
        rope_scaling=rope,
        peak_rate=np.float64(0.01),
        **SIZES,
    )
    run = folder / "run"
    Trainer(model, optimizer, curriculum(folder), loss_fn, run).run()
    return run


def test_the_folder_of_a_program_makes_its_model(trained: Path) -> None:
    run = open_run(trained)

    model = run.model()

    assert run.config is None
    assert model.config.rope_scaling.factor == 2.0
    expected, optimizer, _ = llama(**json.loads(model.made_by)["args"])
    raw = open_run(trained).model(model=expected)
    assert not np.array_equal(_table(raw), _table(model))  # the average is another
    assert optimizer.averaged(expected) is not None


def _table(model: Any) -> Any:
    return np.asarray(model.model.embed_tokens.weight[...])


def test_a_start_with_another_model_of_the_same_shapes_says_so(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    longer = Curriculum(
        Roxxel(trained.parent / "tea_*.rox"), [Phase(3, batch_size=2, seq_len=17)]
    )

    model, optimizer, loss_fn = llama(
        preset="tiny", total_steps=3, ema=0.5, rope_theta=50, peak_rate=0.01, **SIZES
    )
    Trainer(model, optimizer, longer, loss_fn, run).run()

    (line,) = (e.text for e in RunFolder(run).log() if "not made as that" in e.text)
    assert line.startswith("step 2: ")
    assert "rope_theta = 50 (before: null)" in line
    assert "rope_scaling = null" in line
    assert "total_steps" not in line


def test_sample_and_export_work_on_the_run_of_a_program(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "sample", trained, "--prompt", "tea", "--max-tokens", "3")
    assert "parameters" in said(capsys, "export", trained, tmp_path / "hf")


def test_a_model_that_the_class_makes_is_made_again(tmp_path: Path) -> None:
    config = LlamaConfig.tiny(**SIZES)
    model = Llama(config, rngs=nnx.Rngs(3))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    run = tmp_path / "run"
    Trainer(model, optimizer, curriculum(tmp_path), next_token_loss, run).run()

    again = open_run(run).model()

    assert again.config == config
    assert np.array_equal(_table(again), _table(model))


def test_arguments_that_json_cannot_hold_are_no_reason_to_fail() -> None:
    args = {"mu_dtype": np.float32}

    model, _, _ = llama(preset="tiny", total_steps=2, optimizer_args=args, **SIZES)

    assert model.made_by is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"function": "os:system", "args": {"command": "ls"}}',
        '{"function": "llama", "args": 3}',
        '{"function": "llama", "args": {"total_steps": 2, "widht": 3}}',
        '{"function": "Llama", "args": {"widht": 3}}',
        '{"function": "llama", "args": {}}',
    ],
)
def test_what_a_stranger_s_run_says_is_data(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        remade(text)


def test_any_other_model_is_given_by_its_function(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(nnx.Module):
        def __init__(self) -> None:
            self.table = nnx.Embed(257, 8, rngs=nnx.Rngs(0))
            self.made_by = 5  # a name of its own, with another meaning

        def __call__(self, tokens: Any) -> Any:
            return self.table.attend(self.table(tokens))

    def loss_fn(model: Any, batch: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(
            model(batch[:, :-1]), batch[:, 1:]
        ).mean()

    model = Own()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    run = tmp_path / "run"
    Trainer(model, optimizer, curriculum(tmp_path), loss_fn, run).run()
    (tmp_path / "own_model.py").write_text(
        "made = None\ndef make():\n    return made()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["sample", str(run), "--prompt", "tea", "--max-tokens", "2"]

    assert main(words) == 1
    assert "--model MODULE:FUNCTION" in capsys.readouterr().err
    with pytest.raises(RunFolderError, match="--model"):
        open_run(run).model()
    for wrong in ("own_modle:make", "own_model:mak", "own_model"):
        assert main([*words, "--model", wrong]) == 1
        assert f"--model {wrong}" in capsys.readouterr().err
    __import__("own_model").made = Own
    assert main([*words, "--model", "own_model:make"]) == 0


FIELDS: Any = ["tokens", "segment_ids", "positions", "loss_mask"]


def program(folder: Path, steps: int, without: Any = None) -> Path:
    """Train as a program does that has read the README; return the run's folder."""
    tea, hay = Roxxel(folder / "tea_*.rox"), Roxxel(folder / "hay.rox")
    for name, corpus in (("tea", tea), ("hay", hay)):
        texts = (f"{name} {number} is green or dry" for number in range(40))
        corpus.write(texts, tokenizer="bytes", exist="keep")
    blend = {"tea": 0.7, "hay": 0.3}
    phases = [Phase(4, 2, 17, {"tea": 1}), Phase(steps - 4, 4, 33, blend)]
    curriculum = Curriculum(
        tea, phases, {"hay": hay}, primary="tea", policies={"hay": 2}, without=without
    )
    model, optimizer, loss_fn = llama(
        preset="tiny", total_steps=steps, ema=0.5, z_loss=1e-3, **SIZES
    )
    run = folder / "runs" / "program"
    Trainer(
        model,
        optimizer,
        curriculum,
        loss_fn,
        run,
        seed=3,
        checkpoint_every=3,
        log_every=2,
        grad_accum_steps=2,
        fields=FIELDS,
        mesh=jax.make_mesh((1, 1), ("rows", "model"), (AxisType.Auto,) * 2),
    ).run()
    return run


def test_the_run_of_a_program_is_trained_again_as_that_of_a_config(
    tmp_path: Path,
) -> None:
    run = program(tmp_path, 7)
    mesh = config_of(open_run(run)).mesh
    read = open_run(run).sampler().locate(5, 0)
    document = read.documents[0]

    again = replay(run, {read.source: [document]})
    program(tmp_path, 9, without={"hay": [5, range(8, 20)]})
    [found] = verify(run, range(9))

    assert mesh == MeshConfig(axes={"rows": 1, "model": 1})
    assert again.comparison.is_equal, str(again)
    assert again.branches[0].distance > 0
    assert found.is_equal, str(found)
    assert found.start == 0


def test_the_steps_of_a_program_do_not_follow_the_config_of_another_start(
    tmp_path: Path,
) -> None:
    sizes = "\n".join(f"{name} = {size}" for name, size in SIZES.items())
    (tmp_path / "run.toml").write_text(f"""
model = "roxxel.models:llama"
save_path = "run"
sources = {{ self = "tea_*.rox" }}
phases = [{{ steps = 2, batch_size = 2, seq_len = 17 }}]

[model_args]
preset = "tiny"
{sizes}
""")
    data = curriculum(tmp_path)
    make_trainer(load_config(tmp_path / "run.toml")).run(1)
    made = llama(preset="tiny", total_steps=2, peak_rate=0.5, **SIZES)
    Trainer(made[0], made[1], data, made[2], tmp_path / "run").run()

    [found] = verify(tmp_path / "run", range(2))

    assert found.is_equal, str(found)


def test_a_phase_whose_weights_a_program_has_changed_is_one_phase(
    tmp_path: Path,
) -> None:
    tea, hay = Roxxel(tmp_path / "tea_*.rox"), Roxxel(tmp_path / "hay_*.rox")
    for corpus in (tea, hay):
        corpus.write((f"text {x}" for x in range(40)), tokenizer="bytes")
    run = tmp_path / "run"
    for share, until in ((1, 2), (3, None)):
        phases = [Phase(4, 2, 17, {"self": 1, "hay": share})]
        made = llama(preset="tiny", total_steps=4, **SIZES)
        data = Curriculum(tea, phases, {"hay": hay})
        Trainer(*made[:2], data, made[2], run, checkpoint_every=3).run(until)

    for steps in (range(4), range(3, 4)):
        [found] = verify(run, steps)
        assert found.is_equal, str(found)


def test_weights_that_the_program_has_changed_may_explain_a_difference(
    tmp_path: Path,
) -> None:
    made, other = (llama(preset="tiny", total_steps=2, seed=x, **SIZES) for x in (0, 1))
    nnx.update(made[0], nnx.state(other[0], nnx.Param))
    run = tmp_path / "run"
    data = curriculum(tmp_path)
    Trainer(*made[:2], data, made[2], run, checkpoint_every=1).run()

    [first] = verify(run, range(1))
    [second] = verify(run, range(1, 2))

    assert not first.is_equal
    assert "a program gave the run its first weights" in str(first)
    assert second.is_equal, str(second)


def test_a_stranger_s_log_names_no_code(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    evil = '"settings": {"train_step": "os:abort", "eval_fn": "os:abort", '
    log.write_text(log.read_text().replace('"settings": {', evil))

    trainer = config_of(open_run(tmp_path / "run")).trainer

    assert (trainer.train_step, trainer.eval_fn) == (None, None)


def doubled(loss_fn: Any) -> Any:
    """Return what a decorator makes of a loss function: `wraps` copies attributes."""
    return wraps(loss_fn)(lambda model, batch: 2 * loss_fn(model, batch)[0])


OWN: dict[str, Callable[..., Any]] = {
    "loss_fn": lambda _, loss_fn, __: doubled(loss_fn),
    "optimizer": lambda model, *_: nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
    "eval_fn": lambda *_: str,
    "eval_curriculum": lambda _, __, data: data,
}


@pytest.mark.parametrize("own", OWN)
def test_what_only_the_program_has_is_named(tmp_path: Path, own: str) -> None:
    model, optimizer, loss_fn = llama(preset="tiny", total_steps=2, **SIZES)
    data = curriculum(tmp_path)
    given: dict[str, Any] = {"optimizer": optimizer, "loss_fn": loss_fn}
    given[own] = OWN[own](model, loss_fn, data)
    run = tmp_path / "run"
    Trainer(model, curriculum=data, save_path=run, **given).run()

    told: list[str] = []
    with pytest.raises(RunFolderError, match=rf"run: .* with {own} of its own, .*"):
        verify(run, say=told.append)
    assert told == []


REMOVED: dict[str, tuple[Any, str]] = {
    "made_by": (None, "not of roxxel.models.llama"),
    "own": (None, "not of roxxel.models.llama"),
    "mesh": (None, "does not say how its program trained it"),
    "settings": ({"init_from": "runs/gone@3"}, "no checkpoint for init_from"),
}


@pytest.mark.parametrize("field", REMOVED)
def test_a_log_that_does_not_say_how_to_train_is_refused(
    trained: Path, tmp_path: Path, field: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    value, why = REMOVED[field]
    first, *rest = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    start = json.dumps({**json.loads(first), field: value})
    (run / "metrics.jsonl").write_text("".join([f"{start}\n", *rest]))

    with pytest.raises(RunFolderError, match=f"run: .*{why}.*roxxel train CONFIG"):
        config_of(open_run(run))
