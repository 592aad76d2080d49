"""Where do two runs part, and why? Config, data, update and numbers of two logs.

A run is its log, so this reads no checkpoint, and corpora only if `fed` needs them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_ckpt import CheckpointError
from roxxel_curriculum.run_log import LOSS_OF, TIMING_FIELDS
from roxxel_store.records import find_object
from roxxel_train import RunFolderError
from roxxel_train.starts import environment_differences

from roxxel.config import (
    NOT_LEARNED,
    ConfigError,
    config_differences,
    config_values,
    parse_config,
)
from roxxel.runs.compared import (
    NAMED_FIRST,
    OF_DATA,
    OF_UPDATE,
    Parting,
    compare_saves,
)
from roxxel.runs.fed import Digests, compare_fed
from roxxel.runs.run import Run, open_run

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roxxel_train import RunFolder
    from roxxel_train.starts import RunStart

    from roxxel.config import RunConfig

_KINDS = ("config", "data", "update", "numbers")
_DEFAULT = "the default"

_ASIDE = {
    *("cache", "cache_bytes", "eval", "save_path"),
    *(f"trainer.{name}" for name in NOT_LEARNED),
}
"""Keys that change nothing that is learned; the keys below them do not either."""

_NO_NUMBERS = {*TIMING_FIELDS, *OF_DATA, *OF_UPDATE, "kind", "step"}
_SINCE_LAST_ROW = {"loss_mean", "loss_since_save", "perplexity"}


@dataclass(frozen=True)
class RunDiff:
    """What `diff` found.

    Attributes:
        runs: Folders or URLs of the two runs.
        num_steps: Steps that both have trained.
        differences: What differs in these steps, causes first: by step, and within a
            step in the order config, data, update, numbers.
        aside: Keys of the configs that differ but change nothing that is learned.
        shared: What is equal, and up to which step.
        explanations: Devices, releases, mesh and flags that differ.
        not_compared: What could not be compared, and why.

    Example:
        >>> found = RunDiff(("a", "b"), 8, (), (), ("the data of 8 steps",), (), ())
        >>> found.is_equal, found.step
        (True, None)
    """

    runs: tuple[str, str]
    num_steps: int
    differences: tuple[Parting, ...]
    aside: tuple[Parting, ...]
    shared: tuple[str, ...]
    explanations: tuple[str, ...]
    not_compared: tuple[str, ...]

    @property
    def step(self) -> int | None:
        """The first step whose data, update or numbers differ; None if all are equal.

        Losses are known only in the rows of both logs, so the runs may have parted
        earlier: after the row before this one.
        """
        steps = [each.step for each in self.differences if each.kind != "config"]
        return min(steps, default=None)

    @property
    def is_equal(self) -> bool:
        """Whether nothing but configs differs in the steps that both have."""
        return self.step is None

    def __str__(self) -> str:
        """Return the verdict, the differences (causes first), and what is shared."""
        steps = f"the {self.num_steps} steps that both have"
        parts = f"part at step {self.step} of"
        if self.is_equal:
            parts = (
                "equal in what the logs tell of" if self.not_compared else "equal in"
            )
        lines = [
            f"{' and '.join(self.runs)}: {parts} {steps}",
            *map(str, self.differences),
            *(f"shared   {each}" for each in self.shared),
            *(f"may explain it: {each}" for each in self.explanations),
            *(
                f"changes nothing that is learned: {each.what}: "
                f"{' and '.join(each.values)}"
                for each in self.aside
            ),
            *(f"not compared: {each}" for each in self.not_compared),
        ]
        return "\n".join(lines)


def diff(a: str | os.PathLike[str] | Run, b: str | os.PathLike[str] | Run) -> RunDiff:
    """Find where two runs part, and why, from their logs.

    Only steps that both runs have trained are compared. To compare future steps, or a
    config that has not run, use `roxxel plan --diff`.

    Args:
        a: Folder of a run, or its URL, or the open run.
        b: The other run.

    Returns:
        The differences, causes first, and what the runs share.

    Raises:
        RunFolderError: A folder holds no run, or nothing can be compared.
        CheckpointBucketError: A bucket cannot be read.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.run_log import RunLog
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(999), [Phase(4, 2, 8)])
        >>> for seed in (0, 1):
        ...     sampler = curriculum.sampler(seed)
        ...     with RunLog(f"runs/seed{seed}", sampler) as log:
        ...         for step in range(4):
        ...             log.record(step, sampler.batch(step), loss=2.5)
        >>> found = diff("runs/seed0", "runs/seed1")
        >>> found.step, found.differences[0].what, found.differences[0].values
        (0, 'seed', ('0', '1'))
    """
    one, other = (x if isinstance(x, Run) else open_run(x) for x in (a, b))
    names = str(one.path), str(other.path)
    num_steps = min(one.files.step, other.files.step)
    if not num_steps:
        raise RunFolderError(
            f"{' and '.join(names)}: have trained no step in common "
            f"({one.files.step} and {other.files.step} steps); compare what they will "
            "read by `roxxel plan --diff`"
        )
    common = _common_past(one, other)
    rows = _compare_rows(one.files, other.files)
    fed = compare_fed(one, other, num_steps, rows.digests)
    logged = [each.files.saves() for each in (one, other)]
    both = {x for x in logged[0].keys() & logged[1].keys() if 0 < x <= num_steps}
    saves, equal = compare_saves(*({x: each[x] for x in both} for each in logged))
    # After the first that differs, an equal save is no longer shared history.
    equal = [step for step in equal if not saves or step <= saves[0].step]
    shared = [
        *([common] if common else []),
        *_shared_data(fed.num_steps, rows.digests),
        *_shared_rows("losses", rows.num_losses, rows.last_loss),
        *_shared_rows("state digests", len(equal), max(equal, default=0)),
    ]
    found = [*fed.partings, *rows.partings, *saves[:1]]
    missing = [f"data from step {fed.num_steps} on: {fed.unknown}"] * bool(fed.unknown)
    if not rows.has_losses:
        missing.append("losses: no row of both logs has one")
    if not found and not shared:
        raise RunFolderError(
            f"{' and '.join(names)}: nothing in their logs can be compared "
            f"({'; '.join(missing)}); give runs that log their losses or their data"
        )
    configs = _compare_configs(one, other, num_steps, is_branch=common is not None)
    found = sorted(
        [*configs.partings, *found],
        key=lambda each: (each.step, _KINDS.index(each.kind)),
    )
    step = min((each.step for each in found if each.kind != "config"), default=None)
    return RunDiff(
        runs=names,
        num_steps=num_steps,
        differences=tuple(found),
        aside=tuple(configs.aside),
        shared=tuple(shared),
        explanations=() if step is None else tuple(_explanations(one, other, step)),
        not_compared=(*configs.missing, *missing),
    )


def _common_past(a: Run, b: Run) -> str | None:
    """Describe how one run is the other's past, or both have one past."""
    one, other = (run.parent for run in (a, b))
    for run, parent, past in ((a, one, b), (b, other, a)):
        if parent is None or not parent.is_branch or parent.run_id is None:
            continue
        if parent.run_id == (past.files.record or {}).get("id"):
            return f"{run.path} is a branch of {past.path}@{parent.step}"
    if one is None or other is None or one.run_id is None:
        return None
    if one.run_id == other.run_id and one.is_branch and other.is_branch:
        return f"both are branches, of {one} and {other}"
    return None


class _Rows(NamedTuple):
    """What the rows of two logs say; `last_loss` is a step as the log counts."""

    partings: list[Parting]
    digests: Digests
    num_losses: int
    last_loss: int
    has_losses: bool


def _compare_rows(a: RunFolder, b: RunFolder) -> _Rows:
    found: dict[str, Parting] = {}
    num_rows = equal = num_losses = last_loss = 0
    other: tuple[int, str, str] | None = None
    has_losses = False
    for x, y, is_since_same in _pairs(a, b):
        step = x["step"]
        has_losses |= "loss" in x and "loss" in y
        one, two = x.get("digest"), y.get("digest")
        if other is None and isinstance(one, str) and isinstance(two, str):
            if one == two:
                num_rows, equal = num_rows + 1, step
            else:
                other = step, one, two
        for name in OF_UPDATE:
            one, two = x.get(name), y.get(name)
            if name == "skipped":
                one, two = one or 0, two or 0  # a run without the rule skips none
            if None not in (one, two) and one != two:
                values = str(one), str(two)
                found.setdefault(name, Parting("update", step - 1, name, values))
        if "numbers" in found:
            continue
        name = _first_number(x, y, is_since_same=is_since_same)
        if name is not None:
            values = str(x[name]), str(y[name])
            found["numbers"] = Parting("numbers", step - 1, name, values)
        elif "loss" in x and "loss" in y:
            num_losses, last_loss = num_losses + 1, step
    digests = Digests(num_rows, equal, other)
    return _Rows([*found.values()], digests, num_losses, last_loss, has_losses)


def _first_number(
    x: Mapping[str, Any], y: Mapping[str, Any], *, is_since_same: bool
) -> str | None:
    """Return the first field of two rows that differs and is a result of training."""
    names = (x.keys() & y.keys()) - _NO_NUMBERS
    if not is_since_same:
        names = {n for n in names - _SINCE_LAST_ROW if not n.startswith(LOSS_OF)}
    ordered = [*(n for n in NAMED_FIRST if n in names), *sorted(names - {*NAMED_FIRST})]
    return next((name for name in ordered if x[name] != y[name]), None)


def _pairs(
    a: RunFolder, b: RunFolder
) -> Iterator[tuple[dict[str, Any], dict[str, Any], bool]]:
    """Yield the training rows of the steps that both logs have.

    The last value says whether the rows before them are of the same step, so that means
    since then cover the same steps.
    """
    others = _rows(b)
    before_y, y = next(others, (0, None))
    for before_x, x in _rows(a):
        while y is not None and y["step"] < x["step"]:
            before_y, y = next(others, (0, None))
        if y is None:
            return
        if y["step"] == x["step"]:
            yield x, y, before_x == before_y


def _rows(run: RunFolder) -> Iterator[tuple[int, dict[str, Any]]]:
    before = 0
    for row in run.each_row():
        if row is not None and row["kind"] == "train" and row["step"] > before:
            yield before, row
            before = row["step"]


class _Configs(NamedTuple):
    partings: list[Parting]
    aside: list[Parting]
    missing: list[str]


def _compare_configs(a: Run, b: Run, num_steps: int, *, is_branch: bool) -> _Configs:
    """Compare the configs of each step; name each key where it first differs."""
    runs, starts = (a, b), [_starts(a), _starts(b)]
    if not all(starts):
        return _Configs([], [], ["configs: a log has no row of a start"])
    begin = max(each[0].step for each in starts)
    marks = {begin, *(x.step for each in starts for x in each)}
    found: dict[str, Parting] = {}
    ignored: set[str] = {"trainer.branch_from"} if is_branch else set()
    aside = {*_ASIDE, *_same_contents(a, b)}
    missing: dict[str, str] = {}  # each reason once, from the first step with it on
    for mark in sorted(step for step in marks if begin <= step < num_steps):
        rows = [_in_force(each, mark).row for each in starts]
        values, reason = _values(runs, rows)
        if reason:
            missing.setdefault(reason, f"configs from step {mark} on: {reason}")
        for key, (x, y) in config_differences(values):
            if not _is_in(key, ignored):
                pair = x or _DEFAULT, y or _DEFAULT
                found.setdefault(key, Parting("config", mark, key, pair))
    origins = _other_origins(a, b)
    if origins is not None:
        found["trainer.init_from"] = origins
    return _Configs(
        [x for key, x in found.items() if not _is_in(key, aside)],
        [x for key, x in found.items() if _is_in(key, aside)],
        [*missing.values()],
    )


def _values(
    runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Mapping[str, str]], str]:
    """Return the values to compare of two starts, and why some are missing."""
    try:
        one, other = (_config(run, row) for run, row in zip(runs, rows, strict=True))
    except ConfigError as error:
        return [{}, {}], str(error)
    if one is not None and other is not None:
        same = _same_sources(one, other)
        both = (config_values(each) for each in (one, other))
        return [{k: x for k, x in v.items() if not _is_in(k, same)} for v in both], ""
    pairs = zip(runs, (one, other), strict=True)
    without = [str(run.path) for run, config in pairs if config is None]
    return _program_values(*rows), (
        f"{' and '.join(without)} had none, so of the programs only what the logs say "
        "was compared"
    )


def _is_in(key: str, keys: Iterable[str]) -> bool:
    return any(key == each or key.startswith((f"{each}.", f"{each}[")) for each in keys)


def _starts(run: Run) -> list[RunStart]:
    return [each for each in run.files.starts() if each.is_part]


def _in_force(starts: Sequence[RunStart], step: int) -> RunStart:
    return [each for each in starts if each.step <= step][-1]


def _config(run: Run, row: Mapping[str, Any]) -> RunConfig | None:
    text = row.get("config")
    if not isinstance(text, str):
        return None
    return parse_config(text, run.files.path / "config.toml")


def _program_values(*rows: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the values that two starts record without a config, by their keys.

    A key that only one of the starts has is left out.
    """
    found: list[dict[str, str]] = []
    for row in rows:
        values: dict[str, Any] = {}
        with suppress(KeyError, TypeError):
            values["seed"] = row["data"]["state"]["seed"]
        settings = row.get("settings")
        if isinstance(settings, dict):
            names = settings.keys() - {"seed", "save_path"}
            values |= {f"trainer.{name}": settings[name] for name in names}
        made = find_object(str(row.get("made_by")).encode()) or {}
        if isinstance(args := made.get("args"), dict):
            values |= {f"model_args.{name}": value for name, value in args.items()}
        found.append({key: json.dumps(x) for key, x in values.items()})
    one, other = found
    return [{key: each[key] for key in one if key in other} for each in found]


def _same_sources(a: RunConfig, b: RunConfig) -> set[str]:
    """Return the keys of sources whose paths both configs write alike.

    Absolute paths differ if the files lie in two folders; whether the corpora differ is
    found by their data.
    """
    return {
        f"sources.{name}"
        for name, paths in a.sources.items()
        if paths == b.sources.get(name) and a.readers.get(name) == b.readers.get(name)
    }


def _same_contents(a: Run, b: Run) -> set[str]:
    """Return the keys of sources that hold the same tokens in both runs."""
    try:
        one, other = a.fingerprints(), b.fingerprints()
    except (OSError, ValueError, CheckpointError):
        return set()  # `compare_fed` says what is wrong with the row of the start
    return {f"sources.{x}" for x, content in one.items() if other.get(x) == content}


def _other_origins(a: Run, b: Run) -> Parting | None:
    """Return the checkpoints with whose weights two runs began, if they differ."""
    origins = [run.parent for run in (a, b)]
    one, other = (x if x is not None and not x.is_branch else None for x in origins)
    if (one and one.digest) == (other and other.digest):
        return None
    texts = [_DEFAULT if x is None else f"{x} ({x.digest})" for x in (one, other)]
    return Parting("config", 0, "trainer.init_from", (texts[0], texts[1]))


def _shared_data(num_steps: int, digests: Digests) -> list[str]:
    if not num_steps:
        return []
    by = [f"{digests.num_rows} digests"] if digests.num_rows else []
    by += ["their plans"] if digests.equal < num_steps else []
    return [f"the data of the first {num_steps} steps, by {' and '.join(by)}"]


def _shared_rows(what: str, count: int, last: int) -> list[str]:
    return [f"{what} in the log: {count}, up to its step {last}"] if count else []


def _explanations(a: Run, b: Run, step: int) -> Iterator[str]:
    starts = [_starts(a), _starts(b)]
    if not all(each and each[0].step <= step for each in starts):
        return
    rows = [_in_force(each, step).row for each in starts]
    for name, x, y in environment_differences(*rows):
        yield f"{name}: {x} and {y}"
