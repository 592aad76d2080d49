"""A sink of `Logger` that sends rows of metrics to Weights & Biases.

Example::

    Logger("run", sinks=[WandB("run", project="first")])

The extra `wandb` installs the client. `roxxel_train` itself does not import it.
"""

from __future__ import annotations

import inspect
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.run_log import KINDS, START
from roxxel_store import missing_extra
from roxxel_store.lines import NOT_NUMBERS
from roxxel_store.urls import expanded

from roxxel_train._files.folder import find_record
from roxxel_train._log.values import drawn_values
from roxxel_train.run_folder import RunFolder

try:
    import wandb
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_train.wandb", "wandb", "roxxel-train", "wandb"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIENT: Any = wandb


class WandB:
    """Sends the numbers and texts of metrics rows to one run of Weights & Biases.

    A name in W&B is the row's kind and the path of the value: `train/loss`,
    `eval/eval_loss`. The run of W&B continues when the training run resumes: it has the
    id of `run.json`. So before you train in a copied folder, give its sink an `id` of
    its own. Without a `run.json` in `log_dir`, the sink keeps an id in `wandb/run-id`.

    W&B gets each row once. Rows that W&B lacks, because the process was killed or the
    client failed, are sent from `metrics.jsonl` in `log_dir` when the training run
    starts again. W&B never deletes rows: if a run resumes from step k with another
    curriculum, W&B keeps its old rows after k. With `mode="offline"`, each start writes
    its own file, with the rows after its step. So after a kill, `wandb sync` sends
    repeated rows twice.

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
        self._has_offline_files = False
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
        if self._is_offline or self._mode == "disabled":
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
        kind, step = row.get("kind"), int(row.get("step", 0))
        if kind == START:
            self._catch_up(step)
        if kind not in KINDS and step > self._last_step:
            prefix = "" if kind is None else f"{kind}/"
            run.log({prefix + name: x for name, x in drawn_values(row)}, step=step)

    def _catch_up(self, step: int) -> None:
        """Send the rows of `metrics.jsonl` up to `step` that W&B lacks."""
        if self._has_offline_files:
            # Nobody can tell the last step in the files of earlier starts; take `step`.
            self._last_step = step
            return
        for row in RunFolder(self._folder).each_row():
            if row is not None and row["step"] <= step:
                # Sent only if W&B lacks it. No row is a start, which would recurse.
                self(
                    {
                        name: NOT_NUMBERS.get(x, x) if isinstance(x, str) else x
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
        if not self._is_offline:
            # Offline, each start has its own file, and "resume" would cause a warning.
            options.setdefault("resume", "allow")
        files = Path(options["dir"], "wandb").glob(f"offline-run-*-{run_id}")
        self._has_offline_files = self._is_offline and any(files)
        # The client must not capture or add to the output of the program.
        options.setdefault("settings", _CLIENT.Settings(console="off", silent=True))
        self._run = run = _CLIENT.init(**options)
        self._last_step = int(run.step) - 1  # 0 offline
        return run

    @property
    def _mode(self) -> str | None:
        return self._options.get("mode") or os.environ.get("WANDB_MODE")

    @property
    def _is_offline(self) -> bool:
        return self._mode in {"offline", "dryrun"}

    def _recorded_id(self) -> str:
        record = find_record(self._folder)
        if record is not None:
            return record["id"]
        path = self._folder / "wandb" / "run-id"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(secrets.token_hex(8), encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()
