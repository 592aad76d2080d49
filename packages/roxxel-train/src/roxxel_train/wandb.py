"""A sink of `Logger` that sends rows of metrics to Weights & Biases.

Example::

    Logger("run", sinks=[WandB("run", project="first")])

The extra `wandb` installs the client. `roxxel_train` itself does not import it.

Offline, only W&B's own file tells which rows a killed process has written, because W&B
writes in a process of its own. W&B 0.31 has no reader of this file, so 30 lines here
read it. Without them, a resumed run would send all its rows again.
"""

from __future__ import annotations

import inspect
import os
import secrets
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra
from roxxel_store.records import find_object
from roxxel_store.urls import expanded

from roxxel_train._files.log import METRICS
from roxxel_train._files.records import RECORD, RECORD_OF_RUN, find_record
from roxxel_train._log.values import drawn_values

try:
    import wandb
    from wandb.proto import wandb_internal_pb2
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_train.wandb", "wandb", "roxxel-train", "wandb"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# protobuf generates this class during the import, so it has no static type.
_RECORDS: Any = wandb_internal_pb2
_CLIENT: Any = wandb

_NOT_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_BLOCK_BYTES = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


class WandB:
    """Sends the numbers and texts of metrics rows to one run of Weights & Biases.

    A name in W&B is the row's kind and the path of the value: `train/loss`,
    `eval/eval_loss`. The run of W&B continues when the training run resumes: it has the
    id of `run.json`, so a copied folder is a run of its own in W&B too. Without a
    `run.json` in `log_dir`, the sink keeps an id in `wandb/run-id`.

    W&B gets each row once. Rows that W&B lacks, because the process was killed or the
    client failed, are sent from `metrics.jsonl` in `log_dir` when the training run
    starts again. W&B never deletes rows: if a run resumes from step k with another
    curriculum, W&B keeps its old rows after k.

    Args:
        log_dir: Folder of the training run. W&B writes to `wandb/` in this folder.
        **options: Arguments of `wandb.init`, such as `project`, `name`, `tags` and
            `config`; with `mode="offline"`, `wandb sync` sends the files later.

    Raises:
        TypeError: `wandb.init` has no such argument.

    Example:
        >>> sink = WandB("run", project="first", mode="offline")
        >>> sink({"kind": "train", "step": 1, "loss": 0.5})
        >>> sink.close()
    """

    def __init__(self, log_dir: str | os.PathLike[str], **options: Any) -> None:
        self._folder = expanded(log_dir).absolute()
        self._options = options
        self._run: Any = None
        self._last_step = -1
        try:
            inspect.signature(_CLIENT.init).bind(**options)
        except TypeError as error:
            raise TypeError(f"wandb.init: {error}") from error

    def check(self) -> None:
        """Check that the rows can be sent; `Trainer.preflight` calls this method.

        Raises:
            RuntimeError: No login is stored, so W&B would refuse the run.
            Exception: W&B refuses the login, or does not answer.
        """
        mode = self._options.get("mode") or os.environ.get("WANDB_MODE")
        if mode in {"offline", "disabled", "dryrun"}:
            return
        if not _CLIENT.login(prompt=False):
            raise RuntimeError(
                "nobody is logged in; run `wandb login`, or set WANDB_API_KEY, or give "
                'mode="offline" and send the rows later with `wandb sync`'
            )

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Send one row, unless an earlier start has sent this step or a later step.

        Raises:
            Exception: W&B does not accept the run or the row.
        """
        run = self._run or self._begin()
        step = int(row.get("step", 0))
        if step > self._last_step:
            kind = row.get("kind")
            prefix = "" if kind is None else f"{kind}/"
            run.log({prefix + name: x for name, x in drawn_values(row)}, step=step)

    def cut(self, step: int) -> None:
        """Send the rows of `metrics.jsonl` up to `step` that W&B lacks."""
        self._begin()
        path = self._folder / METRICS
        lines = path.read_bytes().splitlines() if path.is_file() else []
        for line in lines:
            row = find_object(line)  # None if a process was killed while it wrote it
            if row is not None and row.get("step", 0) <= step:
                self(
                    {
                        name: _NOT_NUMBERS.get(x, x) if isinstance(x, str) else x
                        for name, x in row.items()
                    }
                )

    def close(self) -> None:
        """End the run of W&B, and wait until its files are written or sent."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _begin(self) -> Any:
        """Start or continue the run of W&B."""
        if self._run is not None:
            return self._run
        self._folder.mkdir(parents=True, exist_ok=True)
        run_id = str(self._options.get("id") or self._recorded_id())
        options = {"id": run_id, "dir": str(self._folder), **self._options}
        if (options.get("mode") or os.environ.get("WANDB_MODE")) != "offline":
            # Offline, each start has its own file, and "resume" would cause a warning.
            options.setdefault("resume", "allow")
        # The client must not capture or add to the output of the program.
        options.setdefault("settings", _CLIENT.Settings(console="off", silent=True))
        self._run = run = _CLIENT.init(**options)
        # Online, the client returns the next step. Offline, read the last step from the
        # files of earlier starts.
        files = Path(options["dir"], "wandb").glob(f"offline-run-*-{run_id}/*.wandb")
        self._last_step = max([int(run.step) - 1, *map(_last_step, files)])
        return run

    def _recorded_id(self) -> str:
        record = find_record(self._folder / RECORD, RECORD_OF_RUN)
        if record is not None:
            return record["id"]
        path = self._folder / "wandb" / "run-id"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(secrets.token_hex(8), encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()


def _last_step(file: Path) -> int:
    """Return the last step in a file of W&B's offline mode; -1 without a step."""
    last = -1
    for content in _records(file.read_bytes()):
        record = _RECORDS.Record()
        record.ParseFromString(content)
        for item in record.history.item:
            if "_step" in {item.key, *item.nested_key}:
                last = max(last, int(item.value_json))
    return last


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file: a header of 7 bytes, then a LevelDB log.

    A file that a killed process left may end within a record, which is left out.
    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    position, record = 7, b""
    while position + _HEADER.size <= len(content):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER.size:
            position += left
            continue
        _, size, kind = _HEADER.unpack_from(content, position)
        start = position + _HEADER.size
        position = start + size
        if position > len(content):
            return
        record += content[start:position]
        if kind in {_FULL, _LAST}:
            yield record
            record = b""
