"""Reads the times of all metrics rows in one pass, and nothing else of them.

Of a log of 10^6 rows, reading the times takes a few seconds and no memory, because
msgspec steps over the other fields without making objects of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from roxxel_train.goodput import TimedRow, time_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Fields(msgspec.Struct):
    kind: str
    step: int
    time: str
    step_s: float = 0.0
    wait_s: float = 0.0
    compile_s: float = 0.0
    eval_s: float = 0.0
    save_s: float = 0.0


def timed_rows(path: Path) -> Iterator[TimedRow]:
    """Yield the times of the undamaged rows of `metrics.jsonl`; none without a file."""
    if not path.is_file():
        return
    decode = msgspec.json.Decoder(_Fields).decode
    with path.open("rb") as file:
        for line in file:
            try:
                row = decode(line)
            except msgspec.DecodeError:
                continue  # a torn or damaged row, which `RunFolder.rows` counts
            time = time_of(row.time)
            if time is not None:
                yield TimedRow(
                    time,
                    row.step,
                    row.kind == "train",
                    row.step_s,
                    row.wait_s,
                    row.compile_s,
                    row.eval_s,
                    row.save_s,
                )
