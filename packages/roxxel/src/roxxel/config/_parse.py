"""From TOML to what it declares: a run, or the schedule of one.

The keys of a table and their types are those of the dataclasses that declare them:
`RunConfig`, `TrainConfig`, `Schedule`, `Phase`, `MeshConfig`. Nothing here opens a
corpus or starts an accelerator.

Changes, as `--set` gives them, are texts `KEY=VALUE`. `KEY` is a dotted TOML key; an
integer selects an entry of an array of tables, as in `phases.0.steps`. `VALUE` is a
TOML value; text that is not TOML is a string.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping
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

from roxxel.config._declaration import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    RunConfig,
    TrainerConfig,
)

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
_MOST_SHOWN = 60
_REMEDY = (
    "put text in quotes, end a line after its value, close every bracket and quote, "
    "and write each key and each table once"
)


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
    inside = file / "config.toml"
    if inside.is_file():
        raise ConfigError(f"{file}: is a folder; give {inside}")
    return parse_config(file_text(file, "a config file"), file, changes)


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
    where = str(file)
    try:
        table = parsed(content)
        if changes:
            where += f": {' '.join(f'--set {change}' for change in changes)}"
        change_all(table, changes)
        return replace(_config(table, file), changes=tuple(changes))
    except RecursionError as error:
        raise ConfigError(f"{file}: its values are nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


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


def schedule_from(table: Mapping[str, Any]) -> Schedule:
    """Return the schedule in a table, such as one that was read from JSON.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.

    >>> phase = {"steps": 9, "batch_size": 4, "seq_len": 129}
    >>> schedule_from({"phases": [phase], "overlap": 1}).overlap
    1
    """
    try:
        return read(Schedule, table)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def parse_schedule(text: str) -> Schedule:
    """Return the schedule in the text of a TOML file.

    For example::

        primary = "web"                 # the name of the primary source; omit for self
        overlap = 1
        skips = [[1200, 3]]             # before step 1200, skip the data of 3 steps

        [policies]
        code = "drop"                   # or "repeat", "stop", or a number of epochs
        math = { epochs = 2, then = "stop" }

        [tokenizers]                    # of corpora that record none
        code = "gpt2"

        [without]                       # what the run does not learn
        code = [17, [200, 300]]         # documents 17, and 200 to 299
        web = ["tokens:[512,1024)"]     # tokens by their index, such as a damaged block
        math = "withdrawn.txt"          # a number on each line; or a .npy file
        books = ["books_scan.json", 3]  # what `roxxel scan` found, and document 3

        [[phases]]
        steps = 1000                    # or epochs = 0.5, or tokens = 1_000_000
        batch_size = 16
        seq_len = 1025
        weights = { web = 0.7, code = 0.2, math = 0.1 }

    Raises:
        ConfigError: The text is not TOML, a key is unknown, or a value is wrong.
    """
    return schedule_from(parsed(text))


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a TOML file; see `parse_schedule`.

    Paths of files in `without` are relative to the folder of the file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The file is missing or no schedule; the message names the file.
    """
    file = expanded(path)
    text = file_text(file, "a schedule")
    try:
        return parse_schedule(text).relative_to(file.parent)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def file_text(file: Path, what: str) -> str:
    """Return the text of a TOML file; errors say to give `what`.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The file is missing, no regular file, too large, or not UTF-8.
    """
    remedy = f"give {what}"
    if file.is_dir():
        raise ConfigError(f"{file}: is a folder; {remedy}")
    try:
        # Some editors write a byte order mark first, which TOML does not permit.
        return read_file(file, _MAX_BYTES, ConfigError, remedy).decode("utf-8-sig")
    except FileNotFoundError as error:
        here = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{file}: no such file{here}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error


def parsed(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        ConfigError: The text is not TOML; the message says what to write instead.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        if line := re.search(r"at line (\d+)", problem):
            shown = text.split("\n")[int(line[1]) - 1].strip()
            problem = f"{problem}, `{shown[:_MOST_SHOWN]}`"
        raise ConfigError(f"not TOML: {problem}; {_REMEDY}") from error


def change_all(table: MutableMapping[str, Any], changes: Sequence[str]) -> None:
    """Make these changes in a table, in the given order.

    The table may be a document of tomlkit, which keeps its comments.

    Raises:
        ValueError: A change is not `KEY=VALUE`, or its key leads into a value that is
            neither a table nor an array, or to an entry that does not exist.
    """
    for change in changes:
        keys, value = _key_and_value(change)
        inside: Any = table
        while len(keys) > 1:
            if isinstance(inside, MutableMapping) and keys[0] not in inside:
                # One assignment: tomlkit loses what is put into a new table later.
                value = _nested(keys[1:], value)
                break
            inside = inside[_key(inside, keys.pop(0), change)]
        inside[_key(inside, keys[0], change)] = value


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
    if isinstance(value, int):
        return value
    digits = value.rstrip("KMGT")
    return int(digits) << 10 * " KMGT".index(value[len(digits) :] or " ")


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


def _nested(keys: Sequence[str], value: Any) -> Any:
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def _key(inside: Any, key: str, change: str) -> str | int:
    """Return the key of a table, or the index of an array."""
    if isinstance(inside, MutableMapping):
        return key
    entries: list[Any] = cast("list[Any]", inside) if isinstance(inside, list) else []
    try:
        return range(len(entries))[int(key)]
    except (ValueError, IndexError):
        raise ValueError(
            f"{change!r} sets the key {key!r} of {inside!r}, which is neither a table "
            "nor an array with this entry; set what exists, or the whole value"
        ) from None


def _key_and_value(change: str) -> tuple[list[str], Any]:
    key, separator, text = change.partition("=")
    nested = _toml(f"{key} = 0") if separator and "\n" not in key else None
    if nested is None:
        raise ValueError(
            f"{change!r} is not KEY=VALUE; write for example trainer.log_every=1"
        )
    keys: list[str] = []
    inner: Any = nested
    while isinstance(inner, dict):
        [(name, inner)] = cast("dict[str, Any]", inner).items()
        keys.append(name)
    found = _toml(f"value = {text}")
    # A text of several lines could hold further keys, which are not part of the value.
    if found is None or len(found) > 1:
        return keys, text
    return keys, found["value"]


def _toml(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
