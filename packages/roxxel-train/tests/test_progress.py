from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import os
import pty
import struct
import sys
import termios
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tqdm
from roxxel_train import Logger

if TYPE_CHECKING:
    from pathlib import Path


MADE_BY_TQDM: Any = tqdm.tqdm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def attach_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of standard error, within the test itself."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def drawn_on(screen: int) -> str:
    """Return all that a closed terminal was told; one read may return a part of it."""
    parts: list[bytes] = []
    with contextlib.suppress(OSError), os.fdopen(screen, "rb", buffering=0) as stream:
        while part := stream.read(2**16):
            parts.append(part)
    return b"".join(parts).decode()


def test_bar_shows_step_total_and_loss_and_stays_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attach_terminal(monkeypatch)
    with Logger() as log:
        log.progress(3, 10, 2.0)
        log.info("a sentence")
        log.progress(10, 10, 1.0)

    assert "a sentence\n" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
    assert "loss=1.0000" in terminal.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 100, 120])
def test_bar_fits_the_terminal_and_drops_whole_texts(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    row = {
        "kind": "train",
        "tokens_per_s": 88540.0,
        "wait_share": 0.883,
        "loss": 3.4,
        "loss/self": 3.1,
        "loss/stackexchange-questions": 3.2,
    }
    shown = [
        *("loss=3.3724", "tok/s=88,540", "wait=88.3%", "self=3.100"),
        "stackexchange-questions=3.200",
    ]
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Logger() as log:
            log.metrics(row)
            log.progress(212, 360, 3.3724)
    drawn = drawn_on(screen)

    line = drawn.rstrip().rsplit("\r", maxsplit=1)[-1].rstrip()
    bar, _, rest = line.rpartition("| ")
    assert len(line) <= columns
    assert len(bar.partition("|")[2]) >= 10
    assert rest.startswith("212/360 [")
    assert rest.endswith("]")
    texts = rest.removesuffix("]").split(", ")[1:]
    assert texts == shown[: len(texts)]
    assert len(texts) == {40: 0, 80: 3, 100: 4, 120: 5}[columns]


def test_bar_of_a_terminal_without_a_width_shows_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 0, 0, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Logger() as log:
            log.progress(212, 360, 3.3724)

    line = drawn_on(screen).rstrip().rsplit("\r", maxsplit=1)[-1]
    assert "212/360" in line
    assert "loss=3.3724" in line


def test_bar_shows_training_rows_and_lines_show_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attach_terminal(monkeypatch)
    with Logger() as log:
        log.metrics({"kind": "train", "step": 3, "loss": 2.5})
        log.metrics({"kind": "eval", "step": 3, "time": "now", "x": 1.5, "text": "abc"})

    assert terminal.getvalue() == "step 3  x 1.5000  text abc\n"


def test_row_that_cannot_be_formatted_does_not_silence_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Logger() as log:
        log.metrics({"kind": "eval", "step": 1, "by": {1: 2, "1": 3}})
        log.metrics({"kind": "train", "step": 1, "loss": "nan", "tokens_per_s": None})
        log.metrics({"kind": "train", "step": 2, "loss": 2.5, "mfu": 0.41})

    assert capsys.readouterr().err == "step 1\nstep 2  loss 2.5000  mfu 41.0%\n"


def test_last_row_is_beside_the_bar_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attach_terminal(monkeypatch)
    with Logger() as log:
        log.progress(10, 10, 1.0)
        log.metrics({"kind": "train", "step": 10, "loss": 1.0, "mfu": 0.41})

    assert "mfu=41.0%" in terminal.getvalue().splitlines()[-1]


def test_status_is_beside_the_bar_until_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attach_terminal(monkeypatch)
    with Logger() as log:
        log.status("compiling phase 0")
        log.progress(3, 10)
        log.status("compiling phase 1")

    assert terminal.getvalue().startswith("compiling phase 0\n")
    assert "\rcompiling phase 1:  30%" in terminal.getvalue()


def test_status_without_a_bar_is_a_line_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logger(tmp_path) as log:
        log.status("compiling phase 0")

    assert capsys.readouterr().err == "compiling phase 0\n"
    assert " INFO compiling phase 0\n" in (tmp_path / "system.log").read_text()


def test_last_step_is_drawn_however_fast_the_steps_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attach_terminal(monkeypatch)
    with Logger() as log:
        for step in range(1, 38):
            log.progress(step, 40)

    assert "37/40" in terminal.getvalue().splitlines()[-1]


def test_blocked_terminal_delays_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, let_go = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    class Blocked(Terminal):
        def write(self, s: str, /) -> int:
            called.set()
            let_go.wait()
            return super().write(s)

    monkeypatch.setattr(sys, "stderr", Blocked())
    with Logger(tmp_path, timeout_s=0.01) as log:
        log.info("hello")
        called.wait()
        log.progress(1, 2)
        log.metrics({"step": 1})
        log.flush()

    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    let_go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.mark.parametrize("widgets", [None, ModuleType("ipywidgets")])
def test_notebook_gets_a_widget_only_with_ipywidgets(
    monkeypatch: pytest.MonkeyPatch, widgets: ModuleType | None
) -> None:
    kernel, notebook = ModuleType("IPython"), ModuleType("tqdm.notebook")
    shell = SimpleNamespace(kernel=object())
    made: list[str] = []

    def bar(kind: str) -> Any:
        def make(**options: Any) -> Any:
            made.append(kind)
            return MADE_BY_TQDM(**options | {"file": io.StringIO()})

        return make

    vars(kernel)["get_ipython"] = lambda: shell
    vars(notebook)["tqdm"] = bar("widget")
    monkeypatch.setattr(tqdm, "tqdm", bar("text"))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: widgets)
    with Logger() as log:
        log.progress(1, 2)

    assert made == ["widget" if widgets else "text"]


def test_file_gets_a_line_at_least_once_a_minute_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Logger() as log:
        for step in range(1, 20):
            now += 25
            log.progress(step, 90, step / 2)
            if step in (1, 10):
                log.metrics({"kind": "train", "step": step, "loss": step / 2})

    assert capsys.readouterr().err.splitlines() == [
        "step 1/90  loss 0.5000",
        "step 3/90  loss 1.5000  left 36 min",
        "step 6/90  loss 3.0000  left 35 min",
        "step 9/90  loss 4.5000  left 34 min",
        "step 10/90  loss 5.0000  left 33 min",
        "step 12/90  loss 6.0000  left 32 min",
        "step 15/90  loss 7.5000  left 31 min",
        "step 18/90  loss 9.0000  left 30 min",
    ]


def test_file_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Logger() as log:
        log.progress(1, 2, 1.0)

    assert capsys.readouterr().err == ""
