"""What a person sees of a run: a bar on a terminal or notebook, else plain lines."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Progress:
    """Shows lines, and a bar if tqdm is installed and somebody looks.

    That is on a terminal and in a notebook, where the bar is a widget if ipywidgets is
    installed. When the stream breaks, because whoever read it has gone, nothing more is
    shown and the run goes on.

    Args:
        stream: Where to write, usually standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._has_status = False
        self._total_steps: int | None = None
        self._make_bar: Any = bar_class(stream)
        self._is_broken = False

    def update(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        """Move the bar to `step`; texts stand beside it by name."""
        self._total_steps = total_steps
        if self._make_bar is not None:
            self._show(lambda: self._move_bar(step, total_steps, shown))

    def status(self, text: str) -> None:
        """Show what is done while the bar stands still: beside it, else as a line."""
        self._show(lambda: self._write_status(text))

    def line(self, text: str) -> None:
        """Show one line, above the bar if there is one."""
        self._show(lambda: self._write(text))

    def row(self, row: Mapping[str, Any]) -> None:
        """Show a row of metrics as a line; the bar shows training rows itself."""
        if self._make_bar is None or row.get("kind") != "train":
            text = describe_row(row, self._total_steps)
            self._show(lambda: self._write(text))

    def close(self) -> None:
        """Leave the bar as it stands and begin a new line."""
        self._show(self._close_bar)

    def _show(self, show: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            show()
        except (OSError, TypeError, ValueError):
            self._is_broken = True

    def _move_bar(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        if self._bar is None:
            self._bar = self._make_bar(
                total=total_steps,
                initial=step,
                unit="step",
                file=self._stream,
                dynamic_ncols=True,
                # It is moved a few times a second; each move is to be seen.
                mininterval=0,
                miniters=1,
                postfix=dict(shown),
            )
        if self._has_status:
            self._bar.set_description_str("", refresh=False)
            self._has_status = False
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(step - self._bar.n)

    def _write_status(self, text: str) -> None:
        if self._bar is None:
            self._write(text)
        else:
            self._bar.set_description_str(text)
            self._has_status = True

    def _write(self, text: str) -> None:
        if self._bar is None:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            self._bar.write(text, file=self._stream)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None


def describe_row(row: Mapping[str, Any], total_steps: int | None = None) -> str:
    """Return a row of metrics as one short line.

    >>> describe_row({"kind": "train", "step": 20, "loss": 2.5}, 90)
    'step 20/90  loss 2.5000'
    """
    total = "" if total_steps is None else f"/{total_steps}"
    parts = [f"step {row.get('step', '?')}{total}"]
    if row.get("kind") == "train":
        parts += [f"{name} {text}" for name, text in train_texts(row).items()]
    else:
        values = {k: v for k, v in row.items() if k not in _NOT_SHOWN}
        parts += [
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        ]
    return "  ".join(parts)


def train_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a person watches during training, as short texts by name."""
    return {
        name: format(row[field], form)
        for field, (name, form) in _WATCHED.items()
        if isinstance(row.get(field), int | float)
    }


_WATCHED = {
    "loss": ("loss", ".4f"),
    "tokens_per_s": ("tok/s", ",.0f"),
    "mfu": ("mfu", ".1%"),
    "wait_share": ("wait", ".1%"),
}
_NOT_SHOWN = ("kind", "step", "time")


def bar_class(stream: TextIO) -> Any:
    """Return tqdm's bar for this stream, None where plain lines are better."""
    notebook = _is_notebook()
    if not notebook and not stream.isatty():
        return None
    try:
        # By name: tqdm.auto warns in a notebook without ipywidgets.
        if notebook and importlib.util.find_spec("ipywidgets") is not None:
            from tqdm.notebook import tqdm
        else:
            from tqdm import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm


def _is_notebook() -> bool:
    """Return whether this program runs in a kernel of Jupyter."""
    shell: Any = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return found is not None and hasattr(found, "kernel")
