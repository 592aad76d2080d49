"""A config with `[proxy]` trains a small run with the epochs of the declared one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel, RunFolderError, open_run
from roxxel.config import (
    ConfigError,
    ProxyConfig,
    config_text,
    load_config,
    make_trainer,
    open_curriculum,
    open_proxy,
    parse_config,
    whole_curriculum,
)

from .runs import CONFIG, said, write_project

if TYPE_CHECKING:
    from pathlib import Path

PROXY = f"{CONFIG}\n[proxy]\nscale = 0.5\nseed = 7\n"


def test_a_proxy_in_a_config_is_that_of_its_curriculum(tmp_path: Path) -> None:
    config = load_config(write_project(tmp_path, PROXY))

    found = open_proxy(config)
    expected = whole_curriculum(config).proxy(scale=0.5, seed=7)

    assert found is not None
    assert str(found) == str(expected)
    assert open_curriculum(config).total_steps == expected.plan.total_steps < 6


def test_a_config_with_a_proxy_is_written_as_it_was_read(tmp_path: Path) -> None:
    config = parse_config(PROXY, tmp_path / "first.toml")

    again = parse_config(config_text(config), tmp_path / "first.toml")

    assert again.proxy == ProxyConfig(scale=0.5, seed=7)
    assert dataclasses.replace(again, changes=()) == config


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("scale = 0.5\ntokens = 9", "scale or tokens"),
        ("seed = 1", "scale or tokens"),
        ("scle = 0.5", "did you mean 'scale'"),
        ("scale = 0", "above 0"),
    ],
)
def test_a_proxy_without_one_size_is_refused(table: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_config(f"{CONFIG}\n[proxy]\n{table}\n", "first.toml")


def test_a_scale_above_1_names_the_file(tmp_path: Path) -> None:
    path = write_project(tmp_path, CONFIG + "\n[proxy]\nscale = 2\n")

    with pytest.raises(ConfigError, match=r"first\.toml: proxy\.scale .* 2$"):
        open_curriculum(load_config(path))


def test_a_trained_proxy_is_read_like_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(tmp_path, PROXY)
    said(capsys, "train", path)

    sampler = open_curriculum(load_config(path)).sampler(3)
    run = open_run(tmp_path / "run")
    np.testing.assert_array_equal(run.sampler().batch(1), sampler.batch(1))
    assert "complete" in said(capsys, "ls", tmp_path)

    (tmp_path / "elsewhere").mkdir()
    for file in list(tmp_path.glob("code*")):
        file.rename(tmp_path / "elsewhere" / file.name)
    moved = open_run(tmp_path / "run", {"code": tmp_path / "elsewhere/code.rox"})
    np.testing.assert_array_equal(moved.sampler().batch(1), sampler.batch(1))
    with pytest.raises(RunFolderError, match="--source"):
        open_run(tmp_path / "run").sampler()


def test_a_proxy_whose_corpora_have_grown_is_read_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unbroken, path = (write_project(tmp_path / x, PROXY) for x in ("a", "b"))
    make_trainer(load_config(unbroken)).run()
    make_trainer(load_config(path)).run(until=2)
    more = (np.arange(start, start + 40) % 50 for start in range(30))
    Roxxel(path.parent / "web_*.rox").write(more, exist="append")

    plan = said(capsys, "plan", path)
    make_trainer(load_config(path)).run()

    folder = path.parent / "run"
    one, other = (open_run(x.parent / "run") for x in (unbroken, path))
    for step in range(one.trained_steps):
        np.testing.assert_array_equal(
            one.sampler().batch(step), other.sampler().batch(step)
        )
    assert [x["digest"] for x in one.metrics if "digest" in x] == [
        x["digest"] for x in other.metrics if "digest" in x
    ]
    assert f"{one.trained_steps} steps" in plan
    assert "bit-equal" in said(capsys, "verify", folder, "--trust")
    assert "hold what the run was fed" in said(capsys, "verify", folder, "--data")
    assert "code" in said(capsys, "show", folder, "--step", "1")
    assert "equal in" in said(capsys, "diff", folder, unbroken.parent / "run")
