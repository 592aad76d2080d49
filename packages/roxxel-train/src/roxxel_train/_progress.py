"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Progress:
    """Shows lines, and a bar if the stream is a terminal and tqdm is installed.

    The bar moves on the loop's thread, lines come from the log's: they take turns. When
    the stream breaks, because whoever read it has gone, nothing more is shown and the
    run goes on.

    Args:
        stream: Where to write, usually standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._total_steps: int | None = None
        self._make_bar: Any = _bar_class() if stream.isatty() else None
        self._turn = threading.Lock()
        self._is_broken = False

    def update(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        """Move the bar to `step`; texts stand beside it by name."""
        self._total_steps = total_steps
        if self._make_bar is not None:
            self._show(lambda: self._move_bar(step, total_steps, shown))

    def line(self, text: str) -> None:
        """Show one line, above the bar if there is one."""
        self._show(lambda: self._write(text))

    def row(self, row: Mapping[str, Any]) -> None:
        """Show a row of metrics as a line; the bar shows training rows itself."""
        if self._make_bar is None or row.get("kind") != "train":
            self._show(lambda: self._write(describe_row(row, self._total_steps)))

    def close(self) -> None:
        """Leave the bar as it stands and begin a new line."""
        self._show(self._close_bar)

    def _show(self, show: Callable[[], None]) -> None:
        with self._turn:
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
                postfix=dict(shown),
            )
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(step - self._bar.n)

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
    texts: dict[str, str] = {}
    if "loss" in row:
        texts["loss"] = f"{row['loss']:.4f}"
    if "tokens_per_s" in row:
        texts["tok/s"] = f"{row['tokens_per_s']:,.0f}"
    if "wait_share" in row:
        texts["wait"] = f"{row['wait_share']:.1%}"
    return texts


_NOT_SHOWN = ("kind", "step", "time")


def _bar_class() -> Any:
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm
