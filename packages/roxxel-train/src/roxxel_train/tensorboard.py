"""A sink of `Logger` that writes rows of metrics for TensorBoard.

Example::

    Logger("run", sinks=[TensorBoard("run/tensorboard")])

The extra `tensorboard` installs tensorboardX. The sink does not use tensorboardX's
`SummaryWriter`, which loses errors of its writing thread, and whose `flush()` does not
wait for this thread: a process that ended after `flush()` lost 7 of 100 rows.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.run_log import KINDS, START
from roxxel_store import missing_extra
from roxxel_store.urls import absolute

from roxxel_train._log.values import drawn_values
from roxxel_train.starts import time_of

try:
    from tensorboardX import RecordWriter
    from tensorboardX.proto import event_pb2, summary_pb2
    from tensorboardX.summary import scalar, text
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_train.tensorboard", "tensorboardX", "roxxel-train", "tensorboard"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

# protobuf generates these classes during the import, so they have no static types.
_EVENTS: Any = event_pb2
_SUMMARIES: Any = summary_pb2


_numbers = itertools.count()


class TensorBoard:
    """Writes the numbers and texts of metrics rows as scalars and texts, by step.

    A tag is the row's kind and the path of the value: `train/loss`,
    `train/tokens_by_source/self`, `eval/text`. When a run resumes from step k,
    TensorBoard discards its rows after step k, because the run writes these rows again.

    Args:
        log_dir: Folder of the event files, created when the first row is written.
            Addresses `gs://` and `s3://` work too.

    Example:
        >>> sink = TensorBoard("run/tensorboard")
        >>> sink({"kind": "train", "step": 1, "loss": 0.5})
        >>> sink.close()
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._log_dir = absolute(log_dir, "log_dir")
        self._writer: RecordWriter | None = None
        self._purge_step: int | None = None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Write one row and flush it to the disk.

        A start begins a new file, which makes TensorBoard discard older rows after it.

        Raises:
            OSError: The row cannot be written.
        """
        if row.get("kind") in KINDS:
            if row["kind"] == START:
                self.close()
                self._purge_step = int(row["step"]) + 1
            return
        writer = self._writer = self._writer or self._open()
        kind = row.get("kind")
        prefix = "" if kind is None else f"{kind}/"
        summary = _SUMMARIES.Summary()
        for name, value in drawn_values(row):
            draw = text if isinstance(value, str) else scalar
            summary.MergeFrom(draw(prefix + name, value))
        moment = time_of(row.get("time")) or time.time()
        _write(writer, wall_time=moment, step=row.get("step", 0), summary=summary)
        writer.flush()

    def close(self) -> None:
        """Close the file; a later row starts another file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> RecordWriter:
        if "://" not in self._log_dir:
            Path(self._log_dir).mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. The process id and a
        # counter distinguish the files that several sinks open in the same second.
        name = (
            f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
            f".{os.getpid()}.{next(_numbers):04}"
        )
        writer = RecordWriter(f"{self._log_dir.rstrip('/')}/{name}")
        now = time.time()
        _write(writer, wall_time=now, file_version="brain.Event:2")
        purge_step, self._purge_step = self._purge_step, None
        if purge_step is not None:
            start = _EVENTS.SessionLog(status=_EVENTS.SessionLog.START)
            _write(writer, wall_time=now, step=purge_step, session_log=start)
        return writer


def _write(writer: RecordWriter, **fields: Any) -> None:
    writer.write(_EVENTS.Event(**fields).SerializeToString())
