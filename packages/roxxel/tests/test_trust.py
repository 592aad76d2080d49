"""A run's folder may come from anybody, so its code runs only with trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from roxxel import open_run, replay
from roxxel.cli import main
from roxxel.config import check_trusted, parse_config
from roxxel_train import RunFolderError

from .runs import CONFIG, MODEL, write_project

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel.config import RunConfig


def config_of(file: Path, model: str, **trainer: Any) -> RunConfig:
    keys = "".join(f"{name} = {value!r}\n" for name, value in trainer.items())
    return parse_config(
        f'model = "{model}"\nsources = {{ self = "none.rox" }}\n'
        "phases = [{ steps = 1, batch_size = 1, seq_len = 2 }]\n"
        f"[trainer]\n{keys}",
        file,
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with a run, in which much lies, and a library on the path."""
    folder, run = tmp_path / "project", tmp_path / "project" / "run"
    for file in (
        "own.py",
        "kit/__init__.py",
        "kit/own.py",
        "run/code.py",
        "run/pack/__init__.py",
        "run/pack/inner.py",
        "run/roxxel/__init__.py",
        "run/roxxel/models.py",
        "run/configs/beside.py",
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("raise SystemExit('this code runs')\n")
    (folder / "linked.py").symlink_to(run / "code.py")
    (run / "out.py").symlink_to(folder / "own.py")
    (run / "way").symlink_to(folder / "kit")
    (tmp_path / "another").symlink_to(run)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ours.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    return folder


MINE = [
    (".", "own:make"),
    (".", "kit.own:make"),
    ("kit", "own:make"),
    (".", "ours:make"),
    ("run", "ours:make"),
    (".", "roxxel.models:llama"),
    ("run/configs", "roxxel.models:llama"),
    (".", "not_there:make"),
    (".", "kit.not_there:make"),
]
STRANGE = [
    ("run", "code:make"),
    ("run", "pack.inner:make"),
    ("run", "pack.not_there:make"),
    ("run/configs", "beside:make"),
    (".", "run.code:make"),
    ("kit", "run.code:make"),
    (".", "linked:make"),
    ("run", "out:make"),
    ("run", "way.own:make"),
    ("../another", "code:make"),
    ("run", "roxxel.models:llama"),
    (".", "subprocess:run"),
    (".", "os:system"),
    (".", "posix:system"),
    (".", "builtins:exec"),
    (".", "__main__:main"),
    (".", "numpy:savetxt"),
    (".", "roxxel.models.huggingface:load"),
]


@pytest.mark.parametrize(("folder", "model"), MINE)
def test_code_of_your_own_projects_needs_no_trust(
    project: Path, folder: str, model: str
) -> None:
    check_trusted(config_of(project / folder / "a.toml", model), project / "run")


@pytest.mark.parametrize("run", ["run", "../another", "kit/../run"])
@pytest.mark.parametrize(("folder", "model"), STRANGE)
def test_other_code_is_refused_with_its_file(
    project: Path, folder: str, model: str, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project))
    config = config_of(project / folder / "a.toml", model)

    with pytest.raises(RunFolderError) as caught:
        check_trusted(config, project / run)

    sentence = str(caught.value)
    assert sentence.count("\n") == 0
    for word in (f"{model} from ", "--trust", "trust=True", "; a stranger"):
        assert word in sentence


@pytest.mark.parametrize("key", ["eval_fn", "train_step"])
def test_every_function_of_a_config_is_checked(project: Path, key: str) -> None:
    functions: dict[str, Any] = {key: "run.code:make"}

    with pytest.raises(RunFolderError, match=r"run/code\.py.*lies in the run's folder"):
        check_trusted(
            config_of(project / "a.toml", "own:make", **functions), project / "run"
        )


def test_commands_run_no_code_of_a_run_without_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A stranger's folder that holds its config, its model and the run.
    path = write_project(tmp_path / "sent", CONFIG.replace('"run"', '"."'))
    assert main(["train", str(path)]) == 0
    run = str(tmp_path / "sent")
    hostile = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{MODEL}"
    (tmp_path / "sent" / "tiny.py").write_text(hostile)
    capsys.readouterr()

    for command in (
        ["sample", run, "--prompt", "a", "--tokenizer", "bytes"],
        ["export", run, str(tmp_path / "model"), "--tokenizer", "bytes"],
        ["eval", run, "--tasks", "none", "--tokenizer", "bytes"],
        ["replay", run, "--without", "self:1"],
    ):
        assert main(command) == 1
        assert "tiny.py, which lies in the run's folder" in capsys.readouterr().err
    with pytest.raises(RunFolderError, match="trust=True in Python"):
        open_run(run).model()
    with pytest.raises(RunFolderError, match="trust=True in Python"):
        replay(run, {"self": [1]})
    for words in (f"ls {tmp_path}", f"show {run} --step 0", f"report {run}"):
        assert main(words.split()) == 0
    assert not (tmp_path / "ran").exists()

    assert open_run(run, trust=True).model().features == 2
    assert (tmp_path / "ran").exists()
