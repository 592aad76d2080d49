"""Rows of metrics for TensorBoard, as a sink of `Logger`; the extra `tensorboard`.

Such as::

    Logger("run", sinks=[TensorBoard("run/tensorboard")])

Event files are written here, on the sink's thread: tensorboardX's own `SummaryWriter`
adds a thread and a queue between processes, and errors are lost in them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

try:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2, summary_pb2
    from tensorboardX.record_writer import directory_check
    from tensorboardX.summary import scalar, text
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_train.tensorboard needs tensorboardX: "
        'pip install "roxxel-train[tensorboard]"',
        name="tensorboardX",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Made by protobuf while they are imported: their classes have no types.
_EVENTS: Any = event_pb2
_SUMMARIES: Any = summary_pb2

_NOT_DRAWN = ("kind", "step", "time")


class TensorBoard:
    """Writes every number of a row as a scalar, every text as a text, at its step.

    A tag is the row's kind and the value's name: `train/loss`,
    `train/tokens_by_source/self`, `eval/text`. When a run goes on from step k,
    TensorBoard is told to forget what it has after k, for those rows come again.

    Args:
        log_dir: Folder of the event files, made with the first row; also `gs://` and
            `s3://` as far as tensorboardX knows them.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._log_dir = os.fspath(log_dir)
        self._writer: Any = None
        self._num_files = 0
        self._purge_step: int | None = None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Write one row, and put it into the file.

        Raises:
            OSError: It cannot be written.
        """
        if self._writer is None:
            self._writer = self._open()
        kind = row.get("kind")
        values = {name: value for name, value in row.items() if name not in _NOT_DRAWN}
        summary = _SUMMARIES.Summary()
        for tag, value in _leaves("" if kind is None else f"{kind}/", values):
            summary.MergeFrom(value(tag))
        event = _EVENTS.Event(step=row.get("step", 0), summary=summary)
        event.wall_time = _seconds(row.get("time"))
        self._writer.write_event(event)
        self._writer.flush()

    def cut(self, step: int) -> None:
        """Begin a new file, in which what came after `step` is purged."""
        self.close()
        self._purge_step = step + 1

    def close(self) -> None:
        """Close the file; a later row begins another."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> Any:
        directory_check(self._log_dir)
        # Files of one second are told apart, and read in order, by these.
        suffix = f".{os.getpid()}.{self._num_files:04}"
        self._num_files += 1
        writer: Any = EventsWriter(os.path.join(self._log_dir, "events"), suffix)  # noqa: PTH118 - may be gs://
        purge_step, self._purge_step = self._purge_step, None
        if purge_step is not None:
            start = _EVENTS.SessionLog(status=_EVENTS.SessionLog.START)
            event = _EVENTS.Event(step=purge_step, session_log=start)
            event.wall_time = _seconds()
            writer.write_event(event)
        return writer


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield tag, and how to make its summary, of every number and text."""
    for name, value in values.items():
        tag = prefix + name
        if isinstance(value, dict):
            yield from _leaves(tag + "/", cast("dict[str, Any]", value))
        elif isinstance(value, str):
            yield tag, lambda tag, value=value: text(tag, value)
        elif isinstance(value, int | float):
            yield tag, lambda tag, value=value: scalar(tag, value)


def _seconds(moment: object = None) -> float:
    """Return the time of a row, or now, in seconds since 1970."""
    if isinstance(moment, str):
        with suppress(ValueError):
            return datetime.fromisoformat(moment).timestamp()
    return time.time()
