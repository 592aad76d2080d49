from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest
from roxxel.cli import main
from roxxel.quickstart.folder import QuickstartError
from roxxel_store import missing_extra, roxxel_command

from .helpers import run_python

if TYPE_CHECKING:
    from pathlib import Path


COMMANDS = [
    *("quickstart", "plan", "train", "ls", "show", "where", "verify", "report"),
    "sample",
]


class Ending:
    """Runs the quickstart's command, with an error in place of its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, error: BaseException) -> int:
        def fail(*_: object, **__: object) -> None:
            raise error

        self._monkeypatch.setattr("roxxel.quickstart.run.quickstart", fail)
        return main(["quickstart"])


@pytest.mark.parametrize("words", [["plan", "x"], ["write", "x"], ["ckpt", "list"]])
def test_ctrl_c_while_a_command_is_imported_is_one_line(
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roxxel.cli.import_module", interrupted)

    assert main(words) == 130
    assert capsys.readouterr().err == "roxxel: interrupted\n"


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(monkeypatch)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from roxxel.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert not {'jax', 'numpy'} & set(sys.modules)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")
    assert "quickstart" in done.stdout
    assert "exit codes:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_module_is_the_command() -> None:
    done = run_python("-m", "roxxel", "--version")

    assert done.returncode == 0
    assert done.stdout.startswith("roxxel ")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["quickstart", "--steps", "many"], ["quickstart", "--seed=-1"]],
)
def test_a_command_line_not_understood_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)

    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("typed", "hint"), [("tarin", "mean 'train'?"), ("x9", "--help")]
)
def test_an_unknown_command_names_the_one_that_was_meant(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([typed])

    assert stop.value.code == 2
    assert hint in capsys.readouterr().err.splitlines()[-1]


def test_messages_of_other_packages_name_this_command() -> None:
    assert roxxel_command("format info") == "roxxel format info"


def test_nothing_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])

    shown = capsys.readouterr()
    assert shown.out == ""
    for command in (*COMMANDS, "format", "ckpt"):
        assert f"\n  {command} " in shown.err


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("format", ("info", "verify", "copy")),
        ("ckpt", ("ls", "verify", "export")),
    ],
)
def test_the_name_of_a_group_alone_shows_its_commands(
    name: str, commands: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name])

    shown = capsys.readouterr()
    assert (stop.value.code, shown.out) == (2, "")
    assert shown.err.startswith(f"usage: roxxel {name} ")
    for command in commands:
        assert f"\n  {command} " in shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_shows_the_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--nonsense", "x"])

    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: roxxel {command} [-h] ")


def test_the_help_of_each_command_fits_a_terminal_and_imports_no_jax() -> None:
    program = (
        "import sys\n"
        "from roxxel.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    try: main([command, '--help'])\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        "    assert 'jax' not in sys.modules, command\n"
    )

    done = run_python("-W", "error", "-c", program, *COMMANDS)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("exit codes:") == len(COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_ckpt_is_passed_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ckpt", "ls", str(tmp_path / "missing")]) == 1

    assert capsys.readouterr().err == (
        f"roxxel ckpt: {tmp_path / 'missing'}: does not exist; "
        "name a folder of checkpoints or of a run\n"
    )


def test_format_is_passed_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["format", "info", str(tmp_path / "missing.rox")])

    assert code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("roxxel format: ")
    assert "missing.rox: no such file or folder" in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ls", "s3://bucket"], "s3://bucket/run"),
        (["report", "gcs://bucket/run"], "gs://"),
        (["diff", "runs/a", "file:///runs/b"], "s3://"),
        (["quickstart", "--out", "s3://bucket/run"], "s3:/bucket/run: .* --out"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_sentence(
    words: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert main(words) == 1

    assert re.fullmatch(f"roxxel: .*{named}.*\n", capsys.readouterr().err)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_folder_of_somebody_else_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    for extra in ([], ["--fresh"]):
        code = main(["quickstart", "--steps", "20", "--out", str(tmp_path), *extra])

        shown = capsys.readouterr()
        assert (code, shown.out) == (1, "")
        assert shown.err == (
            f"roxxel: {tmp_path}: holds thesis.txt and is not a quickstart run; "
            "give another --out\n"
        )
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_too_few_steps_make_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    for extra in ([], ["--fresh"]):
        assert main(["quickstart", "--steps", "1", "--out", str(out), *extra]) == 1

    assert "roxxel: --steps must be 2 or more" in capsys.readouterr().err
    assert not out.exists()


def test_a_python_without_sources_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "roxxel.quickstart.run.find_library", lambda: tmp_path / "nowhere"
    )

    code = main(["quickstart", "--steps", "20", "--out", str(tmp_path / "run")])

    assert code == 1
    assert "0 source files with 0 bytes are too few" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_our_errors_are_sentences(
    ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(QuickstartError("that\ndoes not go")) == 1
    assert ending(OSError(28, "No space left on device")) == 1
    assert ending(missing_extra("log_to", "wandb", "not-installed", "wandb")) == 1

    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "roxxel: that does not go",
        "roxxel: No space left on device",
    ]
    assert lines[2:] == [
        'roxxel: log_to needs wandb; install it: pip install "not-installed[wandb]"'
    ]


def test_our_faults_keep_their_traceback(ending: Ending) -> None:
    with pytest.raises(KeyError):
        ending(KeyError("oops"))


def test_an_interrupt_ends_with_130(
    ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "roxxel: interrupted\n"


def test_a_preempted_run_ends_with_75(
    ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    from roxxel_train import Preempted

    assert ending(Preempted(7, "SIGTERM")) == 75
    assert capsys.readouterr().err == ""  # the log of the run has said why


def test_a_plain_exit_passes(ending: Ending) -> None:
    with pytest.raises(SystemExit):
        ending(SystemExit(3))


def test_a_closed_terminal_does_not_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from roxxel_train import Preempted

    def stop(*_: object, **__: object) -> None:
        closed.write("the newest row")
        raise Preempted(7, "SIGHUP")

    monkeypatch.setattr("roxxel.quickstart.run.quickstart", stop)
    master, terminal = os.openpty()
    os.close(master)
    with open(terminal, "w") as closed:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stdout", closed)

        assert main(["quickstart"]) == 75

        closed.write("what Python flushes at exit")


def test_a_run_goes_on_when_the_reader_of_its_lines_has_gone() -> None:
    program = (
        "import os, sys\n"
        "from roxxel.cli import main\n"
        "from roxxel.quickstart import run\n"
        "run.quickstart = lambda *_, say, **__: say('x' * 100_000) or 2\n"
        "read, write = os.pipe(); os.dup2(write, 1); os.close(write); os.close(read)\n"
        "sys.exit(main(['quickstart']))\n"
    )

    done = run_python("-c", program)

    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert line.startswith("roxxel: ")
