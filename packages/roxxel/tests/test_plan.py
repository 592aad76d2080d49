from __future__ import annotations

import inspect
import json
import pydoc
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel.cli import main
from roxxel.config import (
    ConfigError,
    load_config,
    open_curriculum,
    open_sampler,
)
from roxxel.recipe import KEYS
from roxxel.recipe.learning_rate import LearningRate
from roxxel_format import Roxxel

from .helpers import run_python
from .pages import write_description
from .runs import CONFIG, keep, said, write_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_checkpoint(run: Path, config: Path, step: int) -> None:
    """Leave in a run's folder what a trainer leaves there, without the arrays."""
    loaded = load_config(config)
    state = open_curriculum(loaded).sampler(loaded.seed).state(step)
    write_description(run, step, extra={"data": state})
    keep(loaded, run, step)


def test_a_plan_is_printed_without_jax(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    program = (
        "import sys\n"
        "from roxxel.cli import main\n"
        f"assert main(['plan', {str(config)!r}]) == 0\n"
        "heavy = {'jax', 'flax', 'optax', 'orbax', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")
    plan = open_curriculum(load_config(config)).plan(3)
    assert done.stdout.startswith(f"{plan}\n\nheld-out set: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "key", "hint"),
    [
        ("tiny:make", "widht", "did you mean 'width'?"),
        ("tiny:needs_depth", "x", "the function accepts depth and width"),
        ("roxxel.models:llama", "vocabsize", "did you mean 'vocab_size'?"),
        ("roxxel.models:llama", "peek_rate", "did you mean 'peak_rate'?"),
    ],
)
def test_a_plan_and_a_start_refuse_a_key_of_the_model_with_the_same_words(
    model: str, key: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    changes = ["--set", f"model={model}", "--set", f"model_args={{ {key} = 1 }}"]
    wrong = f"[model_args] has the key {key!r}, which {model} does not accept"

    for command in ("plan", "train"):
        assert main([command, str(config), *changes]) == 1
        assert capsys.readouterr().err == f"roxxel: {config}: {wrong}; {hint}\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["model_args.preset=micro"], ["preset must be", "'micro'", '"tiny"']),
        (["model_args.vocab_size=40"], ["up to 49", "vocab_size = 40", "at least 50"]),
        (["model_args.context=8"], ["seq_len = 16", "context is 8", "context = 15"]),
        (["model_args.eos_token_id=300"], ["eos_token_id=300", "vocab_size=257"]),
        (["model_args.eos_token_id=7"], ["eos_token_id = 7", "token 49", "'self'"]),
        (["model_args.peak_rate=-1"], ["peak_rate must be"]),
        (["model_args.clip=-1"], ["clip must be", "got -1"]),
        (["model_args.ema=1"], ["ema must be", "below 1"]),
        (["model_args.decays=matrix"], ["decays must be", "mean 'matrices'"]),
        (["model_args.z_loss=-1"], ["z_loss must be"]),
        (["model_args.loss_chunk=0"], ["loss_chunk must be an integer of 1 or more"]),
    ],
)
def test_a_plan_and_a_start_refuse_a_model_that_cannot_run_with_the_same_words(
    changes: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_project(tmp_path)
    end_documents(tmp_path, {"web_*.rox": 49, "code.rox": 49})
    options = recipe_options(*changes)

    said: list[str] = []
    for command in ("plan", "train"):
        assert main([command, str(config), *options]) == 1
        said.append(capsys.readouterr().err.splitlines()[-1])

    assert said[0] == said[1]
    for word in (str(config), *words):
        assert word in said[0]


def test_a_plan_says_what_each_device_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    given = "mesh.axes={ data = 2, context = 3, tensor = 2 }"

    shown = said(capsys, "plan", config, "--set", given).splitlines()
    found = json.loads(said(capsys, "plan", config, "--set", given, "--json"))

    at = shown.index(
        "each of 12 devices (data 2, context 3, tensor 2) holds at a time:"
    )
    assert shown[at + 1 : at + 3] == ["phase 0: 1 x 3", "phase 1: 1 x 5"]
    split, also_split, replicated = shown[at + 3 : at + 6]
    assert "batches of 2 x 8 have too few rows" in split
    assert "batches of 1 x 16 have too few rows" in also_split
    assert "batch_size=1 does not divide over the 2 devices" in replicated
    assert "a mesh axis 'context' of" not in replicated  # 15 columns do not divide
    assert found["devices"]["held"] == [[1, 3], [1, 5]]
    left_open = said(capsys, "plan", config, "--set", "mesh.axes={ data = -1 }")
    assert "holds at a time" not in left_open


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["mesh.axes={ data = 1, context = 4 }", "phases.0.seq_len=11"],
            ["10 columns over the 4 of the axis 'context'", "seq_len of 9 or 13"],
        ),
        (
            ["mesh.axes={ data = 8 }", "trainer.strict_sharding=true"],
            ["batch_size=2 does not divide over the 8", "strict_sharding"],
        ),
        (
            ["mesh.axes={ data = 1 }", "trainer.grad_accum_steps=3"],
            ["batch_size=2", "does not divide by grad_accum_steps=3"],
        ),
    ],
)
def test_a_plan_refuses_a_mesh_over_which_phases_do_not_divide(
    changes: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), *recipe_options(*changes)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    for word in (str(config), *words):
        assert word in line


def end_documents(folder: Path, separators: dict[str, int | None]) -> None:
    """Write corpora of a project again, whose documents end with a token."""
    for name, separator in separators.items():
        documents = (np.arange(40) % 48 for _ in range(8))
        Roxxel(folder / name).write(
            documents, vocab_size=50, separator=separator, exist="replace"
        )


def recipe_options(*changes: str) -> list[str]:
    """Return the arguments that give a project the recipe's model, and changes."""
    recipe = ("model=roxxel.models:llama", 'model_args={ preset = "tiny" }')
    return [each for change in (*recipe, *changes) for each in ("--set", change)]


def test_each_source_that_is_read_must_end_with_a_token_that_ends_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    end_documents(tmp_path, {"web_*.rox": 49, "code.rox": 48})
    options = recipe_options("model_args.eos_token_id=49")

    said: list[str] = []
    for command, *more in (["plan"], ["train"], ["train", "--preflight"]):
        assert main([command, str(config), *options, *more]) == 1
        said.append(capsys.readouterr().err.splitlines()[-1])

    assert len({*said}) == 1
    for word in ("token 49", "'self'", "token 48", "'code'", "= [49, 48] in"):
        assert word in said[0]


@pytest.mark.parametrize(
    ("separators", "ends"),
    [
        ({"web_*.rox": 49, "code.rox": 48}, "[49, 48]"),
        ({"web_*.rox": 49, "code.rox": 48}, "[7, 48, 49]"),
        ({"web_*.rox": None, "code.rox": 48}, "48"),
    ],
)
def test_several_tokens_may_end_a_text(
    separators: dict[str, int | None],
    ends: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_project(tmp_path)
    end_documents(tmp_path, separators)
    options = recipe_options(f"model_args.eos_token_id={ends}")

    assert said(capsys, "plan", config, *options).startswith("6 steps, ")


def test_a_source_that_no_phase_reads_may_end_with_any_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only_code = "weights = { self = 0, code = 1 }"
    text = CONFIG.replace("weights = { self = 0.5, code = 0.5 }", only_code)
    text = text.replace("seq_len = 16", f"seq_len = 16\n{only_code}")
    config = write_project(tmp_path, text)
    end_documents(tmp_path, {"web_*.rox": 49, "code.rox": 48})
    options = recipe_options("model_args.eos_token_id=48")

    assert said(capsys, "plan", config, *options).startswith("6 steps, ")


def test_a_plan_ends_with_the_command_that_builds_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    shown = said(capsys, "plan", config, "--set", "seed=4")

    command = f"roxxel train {config} --set seed=4 --preflight"
    assert shown.splitlines()[-1].endswith(command)


@pytest.mark.parametrize(
    "model",
    ["tiny:takes_all", "tiny:optax", "nowhere:make", "json.decoder:JSONDecoder"],
)
def test_a_plan_finds_no_fault_with_a_function_that_it_cannot_read(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    shown = said(capsys, "plan", config, "--set", f"model={model}")

    assert shown.startswith("6 steps, ")


def test_keys_of_the_recipe_are_those_that_its_function_takes() -> None:
    from roxxel.models import LlamaConfig, OptimizerConfig, llama

    def named(function: Callable[..., object]) -> set[str]:
        parameters = inspect.signature(function).parameters.values()
        return {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}

    taken = [LlamaConfig, LearningRate, OptimizerConfig, llama]
    assert {*KEYS} == set.union(*map(named, taken))


def test_a_plan_is_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--json"]) == 0

    plan = open_curriculum(load_config(config)).plan(3)
    found = json.loads(capsys.readouterr().out)
    assert found.pop("held_out")[""]["epochs"] == {"self": 0.2}
    assert found.pop("scans") == []
    assert found == json.loads(json.dumps(plan.to_dict()))


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
        (("code.rox", "nowhere.rox"), "first.toml: source 'code': "),
        (("seq_len = 16", "seq_len = 'long'"), "phases.1.seq_len must be an integer"),
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


def test_a_config_that_is_not_here_names_the_folder_that_was_looked_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["plan", "none.toml"]) == 1

    assert f"none.toml: no such file in {tmp_path};" in capsys.readouterr().err


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
    weights = "self 0.1, code 0.9 instead of self 0.5, code 0.5"
    change = f"- from step 2 on, the weights of phase 0 are {weights}"
    assert change in shown.splitlines()
    assert "phase 1" not in shown
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
    assert ", 2 phases, " in shown
    assert "phase 0: steps 0-1 of 2 x 8" in shown
    assert "phase 0, edited: steps 2-3 of 2 x 8" in shown
    assert "2 steps of this run are done." in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("seed = 3", "seed = 4"),
            ["seed is 4 instead of 3", "or give another save_path"],
        ),
        (
            ("code.rox", "held_out.rox"),
            ["source 'code' holds other data", "code is {folder}/held_out.rox"],
        ),
    ],
)
def test_a_changed_past_is_refused_with_its_difference(
    change: tuple[str, str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 2)
    config.write_text(CONFIG.replace(*change))

    assert main(["plan", str(config)]) == 1

    error = capsys.readouterr().err
    run = tmp_path / "run"
    assert error.startswith(f"roxxel: {config}: {run}: the run there does not fit")
    for word in words:
        assert word.format(folder=tmp_path) in error


def test_a_run_without_a_config_cannot_be_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    (tmp_path / "other").mkdir()

    assert main(["plan", str(config), "--diff", str(tmp_path / "other")]) == 1
    assert "other: holds no run" in capsys.readouterr().err

    (tmp_path / "other" / "metrics.jsonl").write_text("")
    assert main(["plan", str(config), "--diff", str(tmp_path / "other")]) == 1
    assert "a program without a config" in capsys.readouterr().err


def add_longer_phase(folder: Path) -> Path:
    """Write the config of the run with a phase of 40 tokens at its end."""
    config = folder / "longer.toml"
    text = CONFIG.replace(
        "[model_args]",
        "[[phases]]\nsteps = 2\nbatch_size = 1\nseq_len = 40\n\n[model_args]",
    )
    config.write_text(text)
    return config


def test_a_plan_says_what_a_phase_longer_than_that_of_the_run_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 6)
    longer = add_longer_phase(tmp_path)
    note = (
        "phase 2 has sequences of 40 tokens, longer than longest=16, which is fixed at"
    )

    assert main(["plan", str(longer)]) == 0
    assert note in " ".join(capsys.readouterr().out.split())

    for other in (config, tmp_path / "run"):
        assert main(["plan", str(longer), "--diff", str(other)]) == 0
        shown = capsys.readouterr().out
        assert "batches change from step 6 on" in shown
        assert note in " ".join(shown.split())
        assert shown.endswith(f"\n{tmp_path / 'run'}: 6 steps of this run are done.\n")


def test_a_run_and_a_new_run_of_the_same_phases_differ_in_every_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 6)
    longer = add_longer_phase(tmp_path)
    anew = tmp_path / "anew.toml"
    anew.write_text(longer.read_text().replace('"run"', '"second"'))

    assert main(["plan", str(anew), "--diff", str(longer)]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("every batch changes\n- longest is 40 instead of 16, so")
    assert f"{tmp_path / 'second'}: no steps of this run are done.\n" in shown
    assert f"{tmp_path / 'run'}: 6 steps of this run are done.\n" in shown


def test_a_config_without_a_folder_is_compared_as_an_edit_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    make_checkpoint(tmp_path / "run", config, 6)
    draft = add_longer_phase(tmp_path)
    draft.write_text(draft.read_text().replace('save_path = "run"\n', ""))

    assert main(["plan", str(draft), "--diff", str(tmp_path / "run")]) == 0

    assert "batches change from step 6 on" in capsys.readouterr().out


def test_the_sampler_of_a_config_has_the_batches_of_its_run(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    trained = open_sampler(load_config(config))
    make_checkpoint(tmp_path / "run", config, 6)
    longer = load_config(add_longer_phase(tmp_path))

    sampler = open_sampler(longer)

    for step in range(6):
        assert (sampler.batch(step) == trained.batch(step)).all()
        assert sampler.locate(step, 0) == trained.locate(step, 0)
    changed = replace(longer, seed=4)
    with pytest.raises(ConfigError, match=r"longer\.toml: .* seed is 4 instead of 3"):
        open_sampler(changed)


def test_a_path_with_dots_is_shown_without_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = write_project(tmp_path / "project")
    config.write_text(CONFIG.replace('"run"', '"../runs/first"'))
    make_checkpoint(tmp_path / "runs" / "first", config, 2)
    monkeypatch.chdir(tmp_path)

    for name in ("project/first.toml", "project/../project/first.toml"):
        assert main(["plan", name]) == 0
        shown = capsys.readouterr().out
        assert "\nruns/first: 2 steps of this run are done.\n" in shown
    assert main(["plan", "runs/first/config.toml", "--diff", "runs/../runs/first"]) == 0
    assert capsys.readouterr().out == (
        "every batch is the same\n\nruns/../runs/first: 2 steps of this run are done.\n"
    )


def test_dots_after_a_link_lead_to_the_parent_of_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path / "disk")
    make_checkpoint(tmp_path / "disk" / "run", config, 2)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    found = load_config(tmp_path / "link" / ".." / "first.toml")

    assert found.run_folder == tmp_path / "disk" / "run"
    assert main(["plan", str(found.file)]) == 0
    run = tmp_path / "disk" / "run"
    assert f"{run}: 2 steps of this run are done." in capsys.readouterr().out


def test_a_damaged_record_of_a_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")

    assert main(["plan", str(config)]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel: {tmp_path / 'run' / 'run.json'}: is not JSON")
    assert error.count("\n") == 1


def test_a_plan_shows_what_each_evaluation_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(tmp_path, CONFIG)

    assert main(["plan", str(path)]) == 0
    assert "held-out set: each evaluation reads 1 step, 16 tokens" in (
        capsys.readouterr().out
    )
    assert main(["plan", str(path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["held_out"][""]
    assert (figures["steps"], figures["tokens"]) == (1, 16)


def test_a_plan_notes_a_held_out_set_that_is_the_training_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("held_out.rox", "web_*.rox")

    assert main(["plan", str(write_project(tmp_path, text))]) == 0

    assert "is the training corpus of source 'self'" in capsys.readouterr().out


def test_the_help_names_where_the_keys_of_each_table_are_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])

    names = re.findall(r"python -m pydoc (\S+)", capsys.readouterr().out)
    shown = "".join(map(pydoc.render_doc, names))
    keys = ("longest", "batch_size", "grad_accum_steps", "z_loss", "groups")
    assert [key for key in keys if f" {key}: " not in shown] == []


def test_a_plan_notes_a_loss_mask_that_the_run_will_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    corpus = open_curriculum(load_config(config)).primary_streamer
    assert isinstance(corpus, Roxxel)
    corpus.write_column("loss_mask", np.ones(corpus.num_tokens, np.uint8))

    noted = said(capsys, "plan", config)
    read = said(
        capsys, "plan", config, "--set", 'trainer.fields=["tokens","loss_mask"]'
    )

    assert "note: self has a column loss_mask that this run does not read" in noted
    assert "give fields = ['tokens', 'loss_mask'] to leave them out" in noted
    assert "note:" not in read


def test_a_plan_needs_the_held_out_corpora(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(tmp_path, CONFIG)
    (tmp_path / "held_out.rox").unlink()

    assert main(["plan", str(path)]) != 0

    assert f"{path}: [eval]: source 'self': " in (error := capsys.readouterr().err)
    assert "held_out.rox" in error
