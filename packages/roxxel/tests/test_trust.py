"""A run's folder may come from anybody, so its code runs only with trust."""

from __future__ import annotations

import sys
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any

import pytest
from roxxel import open_run, replay
from roxxel.cli import main
from roxxel.config import ConfigError, check_trusted, parse_config
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
        "run/inside/entry.py",
        "run/inside/spread/inner.py",
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("raise SystemExit('this code runs')\n")
    (folder / "linked.py").symlink_to(run / "code.py")
    (run / "out.py").symlink_to(folder / "own.py")
    (run / "way").symlink_to(folder / "kit")
    (tmp_path / "another").symlink_to(run)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ours.py").write_text("")
    (tmp_path / "lib" / "spread").mkdir()
    (tmp_path / "lib" / "spread" / "part.py").write_text("")
    (folder / "names.py").write_text(
        "from own import *\nfrom kit.own import make as made\nfrom os import *\n"
        "from subprocess import run\nfrom roxxel.models import llama\n"
        "from out_of import make as taken\ndef make(): ...\n"
    )
    (folder / "kit" / "names.py").write_text("from .own import make\n")
    (folder / "out_of.py").write_text("from run.code import make\n")
    monkeypatch.syspath_prepend(str(run / "inside"))
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(tmp_path)])
    return folder


class Editable:
    """What an editable installation may put into `sys.meta_path`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "elsewhere" / "edited.py"

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        del path, target
        return spec_from_file_location(name, self.file) if name == "edited" else None


MINE = [
    (".", "own:make"),
    (".", "kit.own:make"),
    ("kit", "own:make"),
    (".", "ours:make"),
    ("run", "ours:make"),
    (".", "edited:make"),
    (".", "spread.part:make"),
    (".", "names:made"),
    (".", "names:make"),
    (".", "names:llama"),
    (".", "kit.names:make"),
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
    (".", "entry:make"),
    (".", "spread.inner:make"),
    (".", "names:taken"),
    (".", "names:run"),
    (".", "names:system"),
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


@pytest.mark.parametrize(
    ("folder", "model", "run"),
    [
        *((*each, "run") for each in STRANGE),
        ("run", "code:make", "../another"),
        ("run", "code:make", "kit/../run"),
    ],
)
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


@pytest.mark.parametrize(
    "lines",
    [
        'mesh = "os:system"',
        'mesh = { devices = "os:system" }',
        'sources = "os:system"',
        'phases = "os:system"',
        '[optimizer]\nname = "os:system"',
        '[trainer]\noptimizer = "os:system"',
        '[trainer]\nloss_fn = "os:system"',
        '[trainer]\nsinks = ["os:system"]',
        '[eval]\nfunction = "os:system"',
    ],
)
def test_no_other_setting_names_a_function(project: Path, lines: str) -> None:
    text = f'model = "own:make"\nsources = {{ self = "none.rox" }}\n{lines}\n'

    with pytest.raises(ConfigError):
        parse_config(text, project / "a.toml")


def test_weights_to_begin_with_are_data(project: Path) -> None:
    config = config_of(project / "a.toml", "own:make", init_from="run.code:make")

    check_trusted(config, project / "run")


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
