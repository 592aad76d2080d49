"""Parses TOML into a `RunConfig`, without opening corpora or starting an accelerator.

The keys of a table and their types are those of the dataclasses that declare them:
`RunConfig`, `TrainConfig`, `Schedule`, `Phase`, `MeshConfig`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from roxxel_curriculum import Phase, Schedule
from roxxel_store.arguments import (
    Count,
    Entry,
    Rule,
    Table,
    built,
    check_table,
    dotted,
    entries,
    named,
    read,
)
from roxxel_store.files import read_file
from roxxel_store.urls import expanded
from roxxel_train.run_folder import PRIMARY

from roxxel.config._changes import change_all
from roxxel.config._declaration import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    RunConfig,
    TrainerConfig,
)
from roxxel.config._toml import parsed

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Sequence

    from roxxel_store.arguments import Hints
    from roxxel_train import RunFolder

_Paths = Annotated[
    str | Annotated[tuple[str, ...], Rule(is_filled=True)],
    Rule(must_be="a path, a pattern, or a list of paths and patterns"),
]
_NumBytes = Annotated[
    Count | Annotated[str, Rule(pattern=r"0*[1-9][0-9]*[KMGT]?\Z")],
    Rule(must_be='bytes, 1 or more, such as 4096, "64K", "1M", "2G" or "1T"'),
]
_MAX_BYTES = 1 << 26
_SIZE_TEXT = re.compile(r"([0-9]+)([KMGT]?)")


@dataclass(frozen=True)
class _Source:
    """A source as a table of the file."""

    path: _Paths
    policy: Any = None
    tokenizer: str | None = None
    format: Literal["flat", "megatron", "datatrove"] | None = None
    dtype: str | None = None
    offset: int | None = None
    separator: int | None = None


@dataclass(frozen=True)
class _OneCorpus:
    """A held-out set of one corpus and one phase."""

    path: _Paths
    steps: Count
    batch_size: Count
    seq_len: Count


_SOURCES = Mapping[
    str,
    Annotated[
        _Paths | _Source,
        Rule(must_be="a path, a pattern, a list of these, or a table with a path"),
    ],
]
_READER = ("format", "dtype", "offset", "separator")

_OF_PYTHON = {
    **dict.fromkeys(("model", "save_path", "seed"), "write it above the first [table]"),
    **dict.fromkeys(("optimizer", "loss_fn"), "the function of model returns it"),
    "curriculum": "write [sources] and [[phases]]",
    "eval_curriculum": "write [eval]",
    **dict.fromkeys(("mesh", "data_sharding"), "write [mesh]"),
    "logger": 'write log_to = ["tensorboard"], or start the run by a Python program',
    "checkpointer": "write save_path, or start the run by a Python program",
}
"""Settings of the trainer that `[trainer]` refuses, and what to do instead."""

# `_data` says what to write for sources and phases.
_EVAL = {
    "sources": Entry(_SOURCES),
    **entries(Schedule),
    "phases": Entry(tuple[Phase, ...]),
}
_OF_FILE = {"file", "schedule", "readers", "changes"}

TOP_KEYS = {
    **{name: x for name, x in entries(RunConfig).items() if name not in _OF_FILE},
    **_EVAL,
    "cache_bytes": Entry(_NumBytes | None),
    "eval": Entry(Mapping[str, Any]),
}
"""The keys above the tables, with their types."""

_PHASE = entries(Phase)
_ABOVE = dict.fromkeys(TOP_KEYS, "write it above the first [table] of the file")
_HINTS: Hints = {
    "": {
        **dict.fromkeys(entries(TrainerConfig), "write it under [trainer]"),
        **dict.fromkeys(entries(MeshConfig), "write it under [mesh]"),
        "preset": "write it under [model_args], or that of a mesh under [mesh]",
        **{name: f"write it under [[phases]], as phases.0.{name}" for name in _PHASE},
    },
    "trainer": {**_ABOVE, **_OF_PYTHON},
    "mesh": _ABOVE,
    "eval": _ABOVE,
    "sources.*": _ABOVE,
}


def load_config(path: str | os.PathLike[str], changes: Sequence[str] = ()) -> RunConfig:
    """Read a config file.

    Args:
        path: The file.
        changes: Values that replace or add to the values of the file, each as
            `"trainer.log_every=1"`: a dotted key and a TOML value. Text that is not
            TOML is a string. An integer in the key selects an entry of an array, as in
            `"phases.0.steps=20"`. Paths are relative to the file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The file is missing or not TOML, a key is unknown, or a value is
            invalid. The message names the file, and the nearest key for an unknown key.
    """
    file = expanded(path)
    if file.is_dir():
        inside = file / "config.toml"
        hint = f"give {inside}" if inside.is_file() else "give a config file"
        raise ConfigError(f"{file}: is a folder; {hint}")
    try:
        data = read_file(file, _MAX_BYTES, ConfigError, "give a config file")
        # Some editors write a byte order mark first, which TOML does not permit.
        content = data.decode("utf-8-sig")
    except FileNotFoundError as error:
        here = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{file}: no such file{here}; give a config file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error
    return parse_config(content, file, changes)


def parse_config(
    content: str, file: str | os.PathLike[str], changes: Sequence[str] = ()
) -> RunConfig:
    """Parse the TOML text of a config file.

    Args:
        content: TOML.
        file: Path of the file, which need not exist. Its folder is the base of relative
            paths in `content`.
        changes: As in `load_config`.

    Raises:
        ConfigError: As in `load_config`.
    """
    file = Path(file)
    try:
        table = parsed(content, f"{file}: ")
        return _changed_config(table, file, tuple(changes))
    except RecursionError as error:
        raise ConfigError(f"{file}: its values are nested too deeply") from error


def used_config(run: RunFolder, step: int | None = None) -> RunConfig | None:
    """Return the config that a run used; None if a program without one started it.

    Args:
        run: The files of the run.
        step: As for `RunFolder.config_text`.

    Raises:
        ConfigError: The config is invalid.
    """
    text = run.config_text(step)
    return None if text is None else parse_config(text, run.path / "config.toml")


def _changed_config(
    table: Mapping[str, Any], file: Path, changes: tuple[str, ...]
) -> RunConfig:
    try:
        edited = copy.deepcopy(dict(table))
        change_all(edited, changes)
        return replace(_config(edited, file), changes=changes)
    except (TypeError, ValueError) as error:
        made = " ".join(f"--set {change}" for change in changes)
        where = f"{file}: {made}: " if changes else f"{file}: "
        raise ConfigError(f"{where}{error}") from error


def _config(table: Mapping[str, Any], file: Path) -> RunConfig:
    check_table(Table(TOP_KEYS), table, hints=_HINTS)
    sources, schedule, readers = _data(table)
    own = {
        name: built(TOP_KEYS[name].kind, value, [name])
        for name, value in table.items()
        if name not in _EVAL
    }
    if own.get("cache_bytes") is not None:
        own["cache_bytes"] = _num_bytes(own["cache_bytes"])
    if "eval" in own:
        own["eval"] = _held_out(own["eval"], schedule.primary)
    return RunConfig(
        file=file, sources=sources, schedule=schedule, readers=readers, **own
    )


def _num_bytes(value: int | str) -> int:
    """Return a number of bytes, given as an integer or as text such as "2G"."""
    found = _SIZE_TEXT.fullmatch(str(value))
    assert found is not None  # noqa: S101 - the type of the key has this pattern
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def _held_out(
    table: Mapping[str, Any], primary: str
) -> EvalConfig | dict[str, EvalConfig]:
    """Return the held-out set of `[eval]`, or the named sets of `[eval.NAME]`.

    `primary` is the name of the primary source in the training data.
    """
    if any(key in _EVAL or not isinstance(value, dict) for key, value in table.items()):
        return _held_out_set(("eval",), table, primary)
    if not table:
        raise ConfigError("[eval] has no sources; write [eval.NAME] for each set")
    return {
        name: _held_out_set(("eval", name), of_set, primary)
        for name, of_set in table.items()
    }


def _held_out_set(
    where: tuple[str, ...], table: Mapping[str, Any], primary: str
) -> EvalConfig:
    if "path" not in table:
        check_table(Table(_EVAL), table, where, _HINTS)
        return EvalConfig(*_data(table, where, primary))
    one = read(_OneCorpus, table, where)
    phase = Phase(one.steps, one.batch_size, one.seq_len)
    return EvalConfig({"self": _paths(one.path)}, Schedule((phase,)))


def _data(
    table: Mapping[str, Any], where: tuple[str, ...] = (), primary: str = PRIMARY
) -> tuple[dict[str, tuple[str, ...]], Schedule, dict[str, dict[str, Any]]]:
    """Return the sources, the schedule and the readers that a checked table declares.

    If the table does not name the primary source, the argument `primary` is its name.
    """
    for name in ("sources", "phases"):
        if not table.get(name):
            header = f"[{dotted([*where, name])}]"
            header = f"[{header}]" if name == "phases" else header
            raise ConfigError(f"{named(where)} has no {name}; write {header}")
    sources, options = _sources(table["sources"])
    in_sources = named([*where, "sources"])
    schedule = dict(table)
    if PRIMARY not in sources:
        schedule.setdefault("primary", primary)
    _check_primary(sources, schedule.get("primary", PRIMARY), in_sources)
    for key, of_all in (("policy", "policies"), ("tokenizer", "tokenizers")):
        own = {name: each[key] for name, each in options.items() if key in each}
        for name in own:
            if name in table.get(of_all, {}):
                raise ConfigError(
                    f"source {name!r} has a {key} in {in_sources} and another in "
                    f"{named([*where, of_all])}; keep one"
                )
        schedule[of_all] = {**table.get(of_all, {}), **own}
    readers = {
        name: own
        for name, each in options.items()
        if (own := {key: each[key] for key in _READER if key in each})
    }
    own = {name: x for name, x in schedule.items() if name in entries(Schedule)}
    return sources, read(Schedule, own, where), readers


def _sources(
    table: Mapping[str, Any],
) -> tuple[dict[str, tuple[str, ...]], dict[str, Mapping[str, Any]]]:
    """Return the paths of every source, and the tables of sources that have a table."""
    options: dict[str, Mapping[str, Any]] = {
        name: cast("dict[str, Any]", value)
        if isinstance(value, dict)
        else {"path": value}
        for name, value in table.items()
    }
    return {name: _paths(each["path"]) for name, each in options.items()}, options


def _paths(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _check_primary(sources: Collection[str], primary: Any, where: str) -> None:
    """Raise ConfigError unless a source is named `primary` and no other is "self"."""
    if primary != PRIMARY and PRIMARY in sources:
        raise ConfigError(
            f"{where} has a source {PRIMARY!r}, which would be the primary corpus, but "
            f"primary is {primary!r}; rename the source, or leave primary out"
        )
    if primary not in sources:
        raise ConfigError(
            f"{where} names no primary corpus, which is {primary!r}; write "
            f'{primary} = "path", or name another by primary = "web" above the first '
            "[table]"
        )
