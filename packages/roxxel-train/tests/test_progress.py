from __future__ import annotations

import importlib.util
import io
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import tqdm
from roxxel_train import Logger
from roxxel_train._progress import Progress, bar_class, describe_row

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_shows_step_total_and_loss_and_is_left_complete() -> None:
    terminal = Terminal()
    progress = Progress(terminal)

    progress.update(3, 10, {"loss": "2.0000"})
    progress.line("a sentence")
    progress.update(10, 10, {"loss": "1.0000"})
    progress.close()

    assert "a sentence\n" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
    assert "loss=1.0000" in terminal.getvalue()


def test_row_of_an_evaluation_shows_all_its_values() -> None:
    row = {"kind": "eval", "step": 3, "time": "now", "loss": 1.5, "text": "abc"}

    assert describe_row(row) == "step 3  loss 1.5000  text abc"


def test_row_that_cannot_be_formatted_does_not_silence_the_rest() -> None:
    stream = io.StringIO()
    progress = Progress(stream)

    progress.row({"kind": "train", "step": 1, "loss": "nan", "tokens_per_s": None})
    progress.row({"kind": "train", "step": 2, "loss": 2.5, "mfu": 0.41})

    assert stream.getvalue() == "step 1\nstep 2  loss 2.5000  mfu 41.0%\n"


def test_status_stands_beside_the_bar_until_the_next_step() -> None:
    terminal = Terminal()
    progress = Progress(terminal)

    progress.status("compiling phase 0")
    progress.update(3, 10, {})
    progress.status("compiling phase 1")
    with_status = terminal.getvalue()
    progress.update(4, 10, {})
    progress.close()

    assert with_status.startswith("compiling phase 0\n")
    assert "\rcompiling phase 1:  30%" in with_status
    assert "compiling" not in terminal.getvalue()[len(with_status) :]


def test_status_is_a_line_where_no_bar_is_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logger(tmp_path) as log:
        log.status("compiling phase 0")

    assert capsys.readouterr().err == "compiling phase 0\n"
    assert " INFO compiling phase 0\n" in (tmp_path / "system.log").read_text()


def test_last_step_is_drawn_however_quick_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Logger() as log:
        for step in range(1, 38):
            log.progress(step, 40, {})

    assert "37/40" in terminal.getvalue().splitlines()[-1]


def test_terminal_that_is_held_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, let_go = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    class Held(Terminal):
        def write(self, s: str, /) -> int:
            called.set()
            let_go.wait()
            return super().write(s)

    monkeypatch.setattr(sys, "stderr", Held())
    with Logger(tmp_path, timeout_s=0.01) as log:
        log.info("hello")
        called.wait()
        log.progress(1, 2, {})
        log.metrics({"step": 1})
        log.flush()

    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    let_go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.mark.parametrize("widgets", [None, ModuleType("ipywidgets")])
def test_notebook_has_the_bar_that_it_can_show(
    monkeypatch: pytest.MonkeyPatch, widgets: ModuleType | None
) -> None:
    kernel, notebook = ModuleType("IPython"), ModuleType("tqdm.notebook")
    shell = SimpleNamespace(kernel=object())
    vars(kernel)["get_ipython"] = lambda: shell
    vars(notebook)["tqdm"] = widget_bar = object()
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: widgets)

    assert bar_class(io.StringIO()) is (widget_bar if widgets else tqdm.tqdm)


def test_file_gets_no_bar() -> None:
    stream = io.StringIO()
    progress = Progress(stream)

    progress.update(1, 2, {"loss": "1"})
    progress.close()

    assert stream.getvalue() == ""
