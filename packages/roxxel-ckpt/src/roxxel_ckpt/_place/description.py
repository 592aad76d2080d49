"""The description of a checkpoint: JSON that needs neither JAX nor Orbax to read.

`checkpoint.json` holds step, metrics, `extra`, versions and the rule that ranks
checkpoints; name, shape and dtype of every leaf; and the CRC-32 of each process's file
of digests. Process 0 writes `checkpoint.json` last, so this file commits the step. Both
kinds of files are sealed.

`Retention` says which finished checkpoints stay: the newest, the best, and permanent
ones. A rule is the metric and mode that rank checkpoints. Every checkpoint records the
rule of the program that saved it. Without `best_metric`, a program uses the rule that
was recorded last, so all programs agree on the best checkpoint. A checkpoint is marked
permanent, or not, once: when it is committed. To decide again later would delete
permanent ones after a clock was wrong.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast

from roxxel_store.arguments import as_integer
from roxxel_store.files import MAX_BYTES, in_parallel, read_file
from roxxel_store.records import as_json, is_count, parse_value

from roxxel_ckpt._arrays.layout import LeafSpec
from roxxel_ckpt._integrity import FileDigest, digests_from_json, problem_of
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointUnreadableError,
    CheckpointWriteError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from roxxel_ckpt._place.folder import Folder, Step

COMMIT_FILE = "checkpoint.json"
# Version of the description, and of the names and storage of arrays.
FORMAT = 2
# Metrics that rank checkpoints by default, most preferred first. `loss_since_save` is
# less noisy than `loss`, the loss of one batch. Hand-written loops record only `loss`.
_DEFAULT_METRICS = ("eval_loss", "loss_since_save", "loss")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class BestRule:
    """The metric and mode that rank checkpoints.

    Attributes:
        metric: Name of the metric. None uses `"eval_loss"` (the held-out loss) if any
            checkpoint has a finite `"eval_loss"`, else `"loss_since_save"` (the mean
            training loss since the previous checkpoint), else `"loss"`.
        mode: `"min"` if lower is better, `"max"` if higher is better.

    Raises:
        ValueError: `mode` is neither `"min"` nor `"max"`.

    Example:
        >>> BestRule("loss").ranked({1: {"loss": 3.0}, 2: {"loss": 1.0}})
        [2, 1]
    """

    metric: str | None = None
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.mode not in {"min", "max"}:
            raise ValueError(f'mode must be "min" or "max", got {self.mode!r}')

    @classmethod
    def of_folder(
        cls,
        recorded: Mapping[int, BestRule | None],
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
    ) -> BestRule:
        """Return the rule that ranks the checkpoints of a folder.

        Args:
            recorded: `Description.best` of every checkpoint, by step.
            metric: Replaces the recorded metric.
            mode: Replaces the recorded mode.

        Returns:
            The rule of the newest checkpoint that records one, or `BestRule()` if none
            does. `metric` and `mode` replace its fields. A recorded mode applies only
            to the recorded metric, so a different `metric` without `mode` uses `"min"`.
        """
        rules = {step: rule for step, rule in recorded.items() if rule is not None}
        rule = rules[max(rules)] if rules else cls()
        if metric is not None and metric != rule.metric:
            rule = cls(metric)
        return rule if mode is None else cls(rule.metric, mode)

    def metric_of(self, metrics: Iterable[Mapping[str, float]]) -> str:
        """Return the name of the metric that ranks checkpoints with these metrics."""
        if self.metric is not None:
            return self.metric
        present = {
            name
            for of_step in metrics
            for name, value in of_step.items()
            if math.isfinite(value)
        }
        return next((name for name in _DEFAULT_METRICS if name in present), "loss")

    def ranked(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps that have a finite value of the metric, best first.

        Of two steps with equal values, the newer one comes first.

        Args:
            metrics: The metrics of every finished step.
        """
        name = self.metric_of(metrics.values())
        sign = 1 if self.mode == "min" else -1
        values = {
            step: sign * of_step[name]
            for step, of_step in metrics.items()
            if math.isfinite(of_step.get(name, math.nan))
        }
        return sorted(values, key=lambda step: (values[step], -step))


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of a checkpoint, without its leaves.

    Attributes:
        step: Number of updates done.
        metrics: Numbers that were saved with the step.
        extra: JSON object that was saved with the step, or None.
        versions: Version of each library that wrote the checkpoint, by name.
        saved_at: Seconds since 1970, when the step was committed.
        format: Version of the layout on disk.
        digests: CRC-32 of each process's file of digests.
        best: Best rule of the program that saved the checkpoint; None if not recorded.
        is_permanent: Whether `keep_every` made the checkpoint permanent when it was
            committed. No later clock or rule changes this.
    """

    step: int
    metrics: Mapping[str, float]
    extra: dict[str, Any] | None
    versions: Mapping[str, str]
    saved_at: float
    format: int = FORMAT
    digests: tuple[int, ...] = ()
    best: BestRule | None = None
    is_permanent: bool = False

    @property
    def digest(self) -> str:
        """A digest of step and files, in hexadecimal digits."""
        text = json.dumps([self.step, *self.digests])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def to_json(self, specs: Mapping[str, LeafSpec]) -> str:
        """Return the text of `checkpoint.json`, with shape and dtype of every leaf."""
        body = dataclasses.asdict(self)
        body["metrics"] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in self.metrics.items()
        }
        body["leaves"] = {name: [s.dtype, list(s.shape)] for name, s in specs.items()}
        # Convert to JSON and back before sealing: the reader computes the CRC-32 of
        # the parsed JSON, so the writer must compute it of the same values.
        return sealed(as_json(body))


@dataclasses.dataclass(frozen=True)
class Retention:
    """The retention options of `Checkpointer`."""

    max_to_keep: int | None = 3
    keep_best: int = 1
    keep_every: int | str | None = None
    best_metric: str | None = None
    best_mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if self.max_to_keep is not None:
            what = "an integer, or None to keep every checkpoint"
            as_integer("max_to_keep", self.max_to_keep, 1, what=what)
        as_integer("keep_best", self.keep_best, 0)
        if isinstance(self.keep_every, str):
            _seconds(self.keep_every)
        elif self.keep_every is not None:
            what = 'a number of steps, or a duration such as "6h"'
            as_integer("keep_every", self.keep_every, 1, what=what)
        if not isinstance(cast("object", self.best_metric), str | None):
            raise TypeError(
                f"best_metric must be a metric's name, got {self.best_metric!r:.50}"
            )
        if self.best_mode not in ("min", "max", None):
            raise ValueError(
                f'best_mode must be "min" or "max", got {self.best_mode!r}'
            )

    def best_rule(self, found: Mapping[int, Description]) -> BestRule:
        """Return the rule that ranks the finished steps."""
        recorded = {step: description.best for step, description in found.items()}
        return BestRule.of_folder(recorded, self.best_metric, self.best_mode)

    def ranked(self, found: Mapping[int, Description]) -> list[int]:
        """Return the steps that have a finite value of the metric, best first."""
        metrics = {step: description.metrics for step, description in found.items()}
        return self.best_rule(found).ranked(metrics)

    def kept(self, found: Mapping[int, Description]) -> set[int]:
        """Return the finished steps to keep, always including the newest."""
        newest_first = sorted(found, reverse=True)
        kept = set(newest_first[: self.max_to_keep])
        best = self.ranked(found)[: self.keep_best]
        return kept | set(best) | {n for n in found if self._is_permanent(found[n])}

    def makes_permanent(
        self, found: Mapping[int, Description], step: int, saved_at: float
    ) -> bool:
        """Return whether a step committed now is permanent.

        Args:
            found: The finished steps, which may include an older save of this step.
            step: The step.
            saved_at: The time, in seconds since 1970.
        """
        if step in found and self._is_permanent(found[step]):
            return True
        if not isinstance(self.keep_every, str):
            return self.keep_every is not None and step % self.keep_every == 0
        earlier = [n for n in found if self._is_permanent(found[n])]
        if not earlier:
            return True
        # The time is negative if a clock was wrong: then keep one checkpoint too many.
        passed_s = saved_at - found[max(earlier)].saved_at
        return not 0 <= passed_s < _seconds(self.keep_every)

    def _is_permanent(self, description: Description) -> bool:
        is_milestone = (
            isinstance(self.keep_every, int) and description.step % self.keep_every == 0
        )
        # A damaged description does not say whether its step is permanent.
        is_damaged = not math.isfinite(description.saved_at)
        return description.is_permanent or is_milestone or is_damaged


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", duration)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if seconds <= 0:
        raise ValueError(
            f"keep_every={duration!r} is not a duration; give a number and s, m, h or "
            'd, such as "6h", or an integer for steps'
        )
    return seconds


def read_description(directory: Path) -> Description:
    """Read the description of a checkpoint; needs neither JAX nor Orbax.

    Args:
        directory: Directory of the step.

    Raises:
        CheckpointDamagedError: The description is missing or damaged.
        CheckpointUnreadableError: The description cannot be read for another reason,
            a newer release wrote it, or the directory has the number of another step.
    """
    named = directory.name.partition(".")[0]
    number = int(named) if named.isdecimal() else None

    def read(name: str) -> bytes:
        return read_file(directory / name, MAX_BYTES)

    return _description(directory, number, unsealed(directory, COMMIT_FILE, read))


def described(step: Step) -> Description:
    """Read the description of a step; raises the errors of `read_description`."""
    return described_whole(step)[0]


def _description(place: object, number: int | None, body: Any) -> Description:
    try:
        # Check this first: a newer release may describe everything else differently.
        found = int(body["format"])
        if found > FORMAT:
            raise CheckpointUnreadableError(
                f"{place}: has format {found} and this roxxel-ckpt reads up to "
                f"{FORMAT}, so nothing was changed; install a newer roxxel-ckpt"
            )
        best = body.get("best")
        step = body["step"]
        if not is_count(step):
            raise ValueError(f"step is {step!r}")  # noqa: TRY301 - as damage below
        if number not in {step, None}:
            raise CheckpointUnreadableError(
                f"{place}: has the name of step {number} and holds step {step}, so "
                f"nothing was changed; rename it to {step}"
            )
        return Description(
            step=step,
            metrics={name: float(value) for name, value in body["metrics"].items()},
            extra=None if body["extra"] is None else {**body["extra"]},
            versions={**body["versions"]},
            saved_at=float(body["saved_at"]),
            format=found,
            digests=tuple(body["digests"]),
            best=None if best is None else BestRule(best["metric"], best["mode"]),
            is_permanent=bool(body.get("is_permanent", False)),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{place}: it has no valid description of roxxel-ckpt ({error!r}); "
            "restore another step"
        ) from error


def described_whole(step: Step) -> tuple[Description, dict[str, LeafSpec]]:
    """Read the description of a step, and shape and dtype of every leaf by name.

    Raises the errors of `read_description`.
    """
    place = step.location
    body = unsealed(place, COMMIT_FILE, step.read)
    description = _description(place, step.number, body)
    try:
        return description, {
            name: LeafSpec(tuple(shape), dtype)
            for name, (dtype, shape) in body["leaves"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(
            f"{place}: the list of leaves is damaged; restore another step"
        ) from error


def digests_of(step: Step, description: Description) -> dict[str, FileDigest]:
    """Return the digests of all files by name, or raise CheckpointDamagedError."""
    return _digests_of_all(step, description.digests)


def delivered(
    folder: Folder, step: Step, digests: Sequence[int]
) -> dict[str, FileDigest]:
    """Return the digests of all files of a step that is not yet committed.

    `digests` has the CRC-32 of each process's file of digests.

    Raises:
        CheckpointWriteError: Process 0 does not see the files of another process.
    """
    try:
        return _digests_of_all(step, digests)
    except CheckpointDamagedError as error:
        raise CheckpointWriteError(
            f"the files of all processes are not in {folder} "
            f"({problem_of(error, step.location)}), so the step could not be restored; "
            f"{folder.not_shared_remedy}"
        ) from error


def _digests_of_all(step: Step, crcs: Sequence[int]) -> dict[str, FileDigest]:
    """Return the digests of all files; `crcs` are those of each process's digests."""
    parts = in_parallel(lambda each: _digests(step, *each), enumerate(crcs))
    return {name: digest for part in parts for name, digest in part.items()}


def _digests(step: Step, process: int, crc: int) -> dict[str, FileDigest]:
    name = digests_file(process)
    body = unsealed(step.location, name, step.read)
    if crc_of(body) != crc:
        raise CheckpointDamagedError(
            f"{step.location}: {name} is from another save; restore another step"
        )
    try:
        return digests_from_json(body)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise CheckpointDamagedError(
            f"{step.location}: {name} holds no digests of a step ({e}); restore "
            "another step"
        ) from e


def finished(folder: Folder) -> dict[int, Step]:
    """Return the finished steps, oldest first."""
    steps = folder.steps().items()
    return {number: step for number, step in steps if step.state == "finished"}


def description_of(folder: Folder, step: SupportsIndex) -> Description:
    """Read the description of a step, or raise CheckpointNotFoundError."""
    number = checked_step(step)
    found = folder.steps([number]).get(number)
    if found is None or found.state != "finished":
        raise not_found(folder, number)
    return described(found)


def not_found(folder: Folder, step: int) -> CheckpointNotFoundError:
    """Return the error for a step that does not exist; lists the existing steps."""
    return CheckpointNotFoundError(
        f"{folder}: has no step {step}; it holds {listed(list(finished(folder)))}"
    )


def listed(steps: list[int]) -> str:
    """Return steps as text: the first ten, and the number of further steps."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def descriptions(
    folder: Folder, unreadable: list[CheckpointUnreadableError] | None = None
) -> dict[int, Description]:
    """Return the description of every finished step.

    A step with a damaged description gets a description without metrics and without a
    rule, whose `saved_at` is minus infinity. If `unreadable` is given, a step that
    cannot be read for another reason gets one too, and the list gets the error.
    """

    def read(step: Step) -> Description | CheckpointError:
        try:
            return described(step)
        except CheckpointDamagedError as error:
            return error
        except CheckpointUnreadableError as error:
            if unreadable is None:
                raise
            unreadable.append(error)
            return error

    steps, known = finished(folder), folder.described
    new = [step for step in steps.values() if step not in known]
    results = known | dict(zip(new, in_parallel(read, new), strict=True))
    found = {number: results[step] for number, step in steps.items()}
    folder.described = {
        step: each
        for step in steps.values()
        if isinstance(each := results[step], Description)
    }
    return {
        number: Description(number, {}, None, {}, -math.inf)
        if isinstance(each, CheckpointError)
        else each
        for number, each in found.items()
    }


def checked_step(step: Any) -> int:
    """Return a step of any integer type as an int; a bool is not an integer."""
    return as_integer("step", step, 0, what="an integer, the number of updates done")


def checked_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return metrics as floats, without values of None."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass a lone loss by mistake
        raise TypeError(
            f"metrics_dict must be a dict of numbers, got {type(metrics).__name__}; "
            'write {"loss": ...}'
        )
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        if value is None:
            continue
        try:
            # `float` would parse a text.
            checked[str(name)] = math.ldexp(value, 0)
        except OverflowError as error:
            raise ValueError(
                f"metrics_dict[{name!r}] is larger than any float; leave it out"
            ) from error
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"metrics_dict[{name!r}] must be a number, got {type(value).__name__}"
            ) from error
    return checked


def checked_json(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `extra` after a round trip through JSON."""
    try:
        return as_json(extra)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"extra must be a dict that JSON can hold ({error}); "
            "put arrays into a Variable of the model instead"
        ) from error


def sealed(body: Any) -> str:
    """Return a JSON text that holds a value and the CRC-32 of the value.

    The CRC-32 covers the value, while `roxxel_store.records` covers bytes: the
    description of a step records this number for the digests of each process. To change
    the seal, change the `FORMAT` of checkpoints.
    """
    return json.dumps({"body": body, "crc32": crc_of(body)}, indent=0)


def unsealed(place: object, name: str, read: Callable[[str], bytes]) -> Any:
    """Return the value sealed in a file of a step.

    Args:
        place: Path or URL of the step, for messages.
        name: Path of the file in the step.
        read: Returns the content of a file of the step, given its path there.

    Raises:
        CheckpointDamagedError: The file is missing or damaged.
        CheckpointUnreadableError: The file cannot be read for another reason.
    """
    try:
        record = parse_value(read(name), name, "restore another step")
        if record["crc32"] == crc_of(record["body"]):
            return record["body"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointDamagedError(
            f"{place}: {name} is missing; restore another step"
        ) from error
    except CheckpointError:  # a bucket that does not answer
        raise
    except (OSError, MemoryError) as error:
        raise CheckpointUnreadableError.because(place, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(
            f"{place}: {name} is damaged; restore another step"
        ) from error
    raise CheckpointDamagedError(f"{place}: {name} is damaged; restore another step")


def crc_of(body: Any) -> int:
    """Return the CRC-32 of a JSON value."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def digests_file(process: int) -> str:
    """Return the path of a process's file of digests, relative to the step."""
    return f"digests/{process}.json"
