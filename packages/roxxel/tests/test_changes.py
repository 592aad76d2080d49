"""Changes of a config by `--set`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel.cli import main
from roxxel.config import (
    ConfigError,
    RunConfig,
    load_config,
    parse_config,
)
from roxxel_train import RunFolder

from .runs import CONFIG, keep, kept_configs, write_project

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(*changes: str, text: str = CONFIG) -> RunConfig:
    return parse_config(text, Path("here") / "first.toml", changes)


@pytest.mark.parametrize(
    ("change", "attribute", "expected"),
    [
        ("seed=5", "seed", 5),
        ("seed = 5", "seed", 5),
        ("save_path=runs/b", "save_path", "runs/b"),
        ("save_path='5'", "save_path", "5"),
        ("save_path=a=b", "save_path", "a=b"),
        ("model_args.width=true", "model_args", {"width": True}),
        ("model_args.a.b=[1, 2]", "model_args", {"width": 2, "a": {"b": [1, 2]}}),
        ("model_args={}", "model_args", {}),
        ("cache=/local", "cache", "/local"),
    ],
)
def test_a_change_has_a_dotted_key_and_a_value_of_toml(
    change: str, attribute: str, expected: object
) -> None:
    assert getattr(parse(change), attribute) == expected


@given(st.integers(1, 10**12), st.sampled_from([0, 1, -1, -2]))
def test_an_integer_selects_a_phase(steps: int, index: int) -> None:
    changed = parse(f"phases.{index}.steps={steps}").schedule.phases
    expected = [phase.steps for phase in parse().schedule.phases]
    expected[index] = steps
    assert [phase.steps for phase in changed] == expected


def test_the_last_change_of_a_key_wins() -> None:
    assert parse("seed=5", "seed=6").seed == 6


def test_a_change_replaces_a_wrong_value_of_the_file() -> None:
    wrong = CONFIG.replace("seed = 3", 'seed = "three"')
    assert parse("seed=5", text=wrong).seed == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["seed=5", "trainer.log_evry=1"],
            "--set trainer.log_evry=1: [trainer] has no key 'log_evry'; did you",
        ),
        (["sed=5"], "--set sed=5: the file has no key 'sed'; did you mean 'seed'?"),
        (["preset=small"], "the file has no key 'preset'; write it under [model_args]"),
        (
            ["steps=9"],
            "the file has no key 'steps'; write it under [[phases]], as phas",
        ),
        (["seed=five"], "--set seed=five: seed must be an integer, got 'five'"),
        (["seed=1\nb=2"], "--set seed=1\nb=2: seed must be an integer, got '1\\nb=2'"),
        (["cache_bytes=1G"], "--set cache_bytes=1G: cache_bytes is given without"),
        (["seed"], "--set seed: 'seed' is not KEY=VALUE; write for example"),
        (["=5"], "--set =5: '=5' is not KEY=VALUE"),
        (["a b=5"], "--set a b=5: 'a b=5' is not KEY=VALUE"),
        (["seed.a=5"], "'seed.a=5' sets the key 'a' of 3, which is neither a"),
        (["phases.first.steps=5"], "sets the key 'first' of [{"),
        (["phases.2.steps=5"], "sets the key '2' of [{"),
    ],
)
def test_an_error_names_the_change_that_causes_the_error(
    changes: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*changes)
    assert str(caught.value).startswith("here/first.toml: --set ")
    assert message in str(caught.value)


def test_a_run_keeps_the_config_with_its_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)
    changes = ["--set", "save_path=runs/b", "--set", "trainer.log_every=2"]

    assert main(["train", str(config), *changes]) == 0

    shown = capsys.readouterr().out
    assert f"roxxel train {config} --set save_path=runs/b --set trainer.log" in shown
    run = tmp_path / "runs" / "b"
    first = (run / "config.toml").read_text()
    assert '# first.toml with --set "save_path=runs/b" --set "trainer.log' in first
    assert "# A run to learn from." in first
    assert not (tmp_path / "run").exists()
    kept = load_config(run / "config.toml")
    assert kept.run_folder == run
    assert kept.trainer.log_every == 2
    rows, _ = RunFolder(run).rows()
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 4, 6]

    assert main(["train", str(config), *changes]) == 0
    assert kept_configs(run) == [0]
    assert main(["train", str(run / "config.toml")]) == 0
    assert "already complete: 6 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        ["eval.new={path='held_out.rox', steps=1, batch_size=2, seq_len=8}"],
        ["eval.web.steps=7", "trainer.log_every=3"],
        ["trainer.log_to.tensorboard.log_dir=tables"],
        ["phases.0.weights.self=0.25", "model_args.nested.a=[1, {b=2}]"],
        ["relative_to=..", "policies.math=drop"],
    ],
)
def test_a_copy_of_the_file_has_its_changes_and_its_comments(
    tmp_path: Path, changes: list[str]
) -> None:
    # Tables of `eval` on both sides of another table are what editors get wrong.
    web, code = (
        f"[eval.{name}]  # {name}\npath = 'a'\nsteps = 1\nbatch_size = 2\nseq_len = 8\n"
        for name in ("web", "code")
    )
    head, _, rest = CONFIG.partition("[eval]")[0].partition("[trainer]")
    (tmp_path / "first.toml").write_text(f"{head}{web}\n[trainer]{rest}{code}")
    config = load_config(tmp_path / "first.toml", changes)

    keep(config, tmp_path / "run")

    copy = load_config(tmp_path / "run" / "config.toml")
    assert config == replace(copy, file=config.file, relative_to=config.relative_to)
    assert copy.folder.resolve() == config.folder.resolve()
    text = (tmp_path / "run" / "config.toml").read_text()
    for comment in ("# A run to learn from.", "# web", "# code"):
        assert comment in text


def test_a_plan_takes_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_project(tmp_path)

    assert main(["plan", str(config), "--json", "--set", "phases.-1.steps=3"]) == 0

    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert plan["phases"][-1]["steps"] == 3
    assert main(["plan", str(config), "--set", "phases.1.stps=3"]) == 1
    assert "--set phases.1.stps=3: " in capsys.readouterr().err
