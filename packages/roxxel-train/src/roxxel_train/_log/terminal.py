"""Shows a run on standard error: a progress bar, or plain lines."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from roxxel_curriculum.run_log import LOSS_OF
from roxxel_store.lines import plain_row
from roxxel_store.screen import printable, short_duration, shown

from roxxel_train._files.log import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_train._files.log import LateRow

_REDRAW_S = 0.1
"""Shortest time, in seconds, between two moves of the progress bar."""

_LINE_S = 60.0
"""Without a bar, a line with the step appears if no other line has shown a step for
this time.
"""

_WATCHED = {
    "loss": ("loss", ".4f"),
    "tokens_per_s": ("tok/s", ",.0f"),
    "mfu": ("mfu", ".1%"),
    "wait_share": ("wait", ".1%"),
}
"""Fields of a training row that the terminal shows, with short names and formats."""

_MOST_SOURCES = 4
"""Largest number of sources whose losses a line shows."""

_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""tqdm's bar without steps per second, because the text next to it has tokens per
second.
"""

_USUAL_SIZE = {"ncols": 80, "nrows": 24}
"""Assumed size of a terminal that does not tell its size, as arguments of tqdm."""

_NOT_SHOWN = ("kind", "step", "time")


class Terminal:
    """Shows lines, and a tqdm bar on a terminal or in a notebook, on its own thread.

    After an error of the stream the terminal shows nothing more; the run continues.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar_class = _bar_class(stream)
        self._bar: Any = None
        self._has_status = False
        self._total_steps: int | None = None
        self._first_step: int | None = None
        self._first_at_s = self._newest_at_s = 0.0
        self._progress: tuple[int, int, str | None] | None = None
        self._newest: tuple[int, int, str | None] | None = None
        self._texts: Mapping[str, str] = {}  # of the last training row
        self._redraw_at_s = 0.0
        self._line_at_s = time.monotonic() + _LINE_S
        self._worker = Worker("roxxel-terminal", is_lossy=True)

    def progress(self, step: int, total_steps: int, loss: float | None) -> None:
        """Move the bar to `step`; next to it show the loss and the last training row.

        Without a bar, show a line with the previous step and its loss if no line has
        shown a step for a minute. The line appears one step late: the metrics row of
        a step arrives after its progress, and makes the line redundant.
        """
        now = time.monotonic()
        if self._bar_class is None and now >= self._line_at_s:
            self._draw_line(now)
        self._total_steps = total_steps
        if self._first_step is None:
            self._first_step, self._first_at_s = step, now
        self._newest_at_s = now
        text = None if loss is None else format(loss, _WATCHED["loss"][1])
        self._progress = self._newest = (step, total_steps, text)
        if self._bar_class is not None and now >= self._redraw_at_s:
            self._redraw_at_s = now + _REDRAW_S
            self._draw_progress()

    def status(self, text: str) -> None:
        """Show a text next to the bar until the bar moves; without a bar, as a line."""
        self._worker.put(self._write_status, text)

    def line(self, text: str) -> None:
        """Show one line, above the bar if there is one."""
        self._worker.put(self._write, text)

    def row(self, row: LateRow) -> None:
        """Show a row of metrics as a line, unless the bar shows its values."""
        if row.head.get("kind") != "train":
            self._worker.put(self._write_row, row)
        elif self._bar_class is not None:
            self._worker.put(self._keep_texts, row)
            self._progress = self._newest  # which the bar has shown without this row
        else:
            self._worker.put(self._write_row, row, self._left())
            self._progress = None
            self._line_at_s = time.monotonic() + _LINE_S

    def close(self, timeout_s: float) -> None:
        """Show the queued lines; leave the last state of the bar on the screen."""
        self._draw_progress()
        self._worker.finish(self._close_bar)
        self._worker.join(timeout_s)

    def _draw_line(self, now: float) -> None:
        if self._progress is not None:
            step, _, loss = self._progress
            # Shows only the loss: the texts are from the last metrics row, so they are
            # more than a minute old.
            row = {"step": step} if loss is None else {"step": step, "loss": loss}
            self._line_at_s = now + _LINE_S
            line = _describe_row(row, self._total_steps)
            self._worker.put(self._write, line + self._left())

    def _left(self) -> str:
        """Return the ETA at the average speed of this start, for a line."""
        if self._first_step is None or self._newest is None:
            return ""
        step, total_steps, _ = self._newest
        if not self._first_step < step < total_steps:
            return ""
        each_s = (self._newest_at_s - self._first_at_s) / (step - self._first_step)
        return f"  left {short_duration(each_s * (total_steps - step))}"

    def _draw_progress(self) -> None:
        progress, self._progress = self._progress, None
        if self._bar_class is not None and progress is not None:
            self._worker.put(self._move_bar, *progress)

    def _keep_texts(self, row: LateRow) -> None:
        self._texts = _train_texts(row.whole())

    def _move_bar(self, step: int, total_steps: int, loss: str | None) -> None:
        if self._bar is None:
            self._bar = self._bar_class(
                total=total_steps,
                initial=step,
                file=self._stream,
                bar_format=_BAR,
                **_size(self._stream),
                # `progress` limits the rate of moves, so tqdm must draw every move.
                mininterval=0,
                miniters=1,
            )
        if self._has_status:
            self._bar.set_description_str("", refresh=False)
            self._has_status = False
        shown = self._texts if loss is None else {**self._texts, "loss": loss}
        self._bar.set_postfix(_fitting(self._bar, shown), refresh=False)
        self._bar.update(step - self._bar.n)

    def _write_status(self, text: str) -> None:
        if self._bar is None:
            self._write(text)
        else:
            self._bar.set_description_str(printable(text))
            self._has_status = True

    def _write(self, text: str) -> None:
        if self._bar is None:
            self._stream.write(shown(text) + "\n")
            self._stream.flush()
        else:
            self._bar.write(shown(text), file=self._stream)

    def _write_row(self, row: LateRow, left: str = "") -> None:
        try:
            plain = plain_row(row.whole())
        except ValueError:
            return  # `metrics.jsonl` reports the error
        self._write(_describe_row(plain, self._total_steps) + left)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None


def _size(stream: TextIO) -> dict[str, Any]:
    """Return the arguments of tqdm for the size of a terminal.

    A terminal may not know its size: under `ssh -tt`, `script` or in a container it
    says 0, and tqdm would cut the bar to nothing.
    """
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return {"dynamic_ncols": True} if columns else _USUAL_SIZE


def _train_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a training row for the terminal, as short texts by name."""
    watched = dict(_WATCHED)
    by_source = [field for field in row if field.startswith(LOSS_OF)]
    if len(by_source) > 1:  # one source: its loss is the loss of the run
        for field in by_source[:_MOST_SOURCES]:
            watched[field] = (field.removeprefix(LOSS_OF), ".3f")
    return {
        printable(name): format(row[field], form)
        for field, (name, form) in watched.items()
        if isinstance(row.get(field), int | float)
    }


def _fitting(bar: Any, shown: Mapping[str, str]) -> dict[str, str]:
    """Return as many of the first texts as fit on a line with a 10-character bar."""
    state = bar.format_dict
    width, kept = state["ncols"], dict(shown)
    while kept and isinstance(width, int):
        texts = ", ".join(f"{name}={text}" for name, text in kept.items())
        # Without a width, tqdm draws a bar of 10 characters.
        line = bar.format_meter(**state | {"postfix": texts, "ncols": None})
        if len(line) <= width:
            break
        kept.popitem()
    return kept


def _describe_row(row: Mapping[str, Any], total_steps: int | None) -> str:
    """Return a row as one line, such as `step 20/90  loss 2.5000`."""
    total = "" if total_steps is None else f"/{total_steps}"
    if row.get("kind") == "train":
        values: dict[str, Any] = _train_texts(row)
    else:
        values = {name: x for name, x in row.items() if name not in _NOT_SHOWN}
    parts = [f"step {row.get('step', '?')}{total}"]
    parts += [
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]
    return "  ".join(parts)


def _bar_class(stream: TextIO) -> Any:
    """Return tqdm's class for a stream; None if the stream gets plain lines."""
    notebook = _is_notebook()
    if not notebook and not stream.isatty():
        return None
    try:
        # `tqdm.auto` would print a warning in a notebook without ipywidgets.
        if notebook and importlib.util.find_spec("ipywidgets") is not None:
            from tqdm.notebook import tqdm
        else:
            from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm


def _is_notebook() -> bool:
    shell: Any = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return found is not None and hasattr(found, "kernel")
