"""Parses TOML into a `RunConfig`, without opening corpora or starting an accelerator.

For each TOML table, a dict maps the keys to the checks of their values (`Kind`).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from roxxel_curriculum import Schedule, schedule_from

from roxxel.config._changes import changed
from roxxel.config._declaration import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    RunConfig,
    TrainerOptions,
)
from roxxel.config._kinds import (
    ABOVE_0,
    BOOLEAN,
    FUNCTION,
    INTEGER,
    KEPT,
    LOCAL_PATH,
    NUM_BYTES,
    PATHS,
    POSITIVE,
    SECONDS,
    SHARDING,
    SINK_NAMES,
    SINKS,
    SIZE,
    SPAN,
    TABLE,
    TEXT,
    TEXTS,
    Expected,
    Kind,
    one_of,
    unchanged,
)
from roxxel.run_files import PRIMARY

_SCHEDULE: dict[str, Kind] = {
    **{entry.name: unchanged for entry in fields(Schedule)},
    "primary": TEXT,
}

_READER: dict[str, Kind] = {
    "format": one_of("flat", "megatron", "datatrove", "roxxel02"),
    "dtype": TEXT,
    "offset": INTEGER,
    "separator": INTEGER,
}

_SOURCE: dict[str, Kind] = {
    "path": unchanged,
    "policy": unchanged,
    "tokenizer": TEXT,
    **_READER,
}

_TRAINER: dict[str, Kind] = {
    "log_every": POSITIVE,
    "eval_every": POSITIVE,
    "checkpoint_every": POSITIVE,
    "max_to_keep": POSITIVE,
    "keep_every": KEPT,
    "best_metric": TEXT,
    "grad_accum_steps": POSITIVE,
    "fields": TEXTS,
    "strict_sharding": BOOLEAN,
    "init_from": TEXT,
    "branch_from": TEXT,
    "profile": SPAN,
    "hang_after_s": SECONDS,
    "check": one_of("headers", "blocks"),
    "on_damage": one_of("raise", "mask"),
    "timeout": ABOVE_0,
    "flops_per_token": ABOVE_0,
    "model_sharding": SHARDING,
    "eval_fn": FUNCTION,
    "train_step": FUNCTION,
    "log_to": SINKS,
    **dict.fromkeys(SINK_NAMES, TABLE),
}

_MESH: dict[str, Kind] = {
    "preset": one_of("data-parallel", "fsdp", "hybrid"),
    "axes": TABLE,
    "batch_axes": TEXTS,
    "groups": POSITIVE,
}

_EVAL: dict[str, Kind] = {"sources": TABLE, **_SCHEDULE}

_EVAL_OF_ONE_CORPUS: dict[str, Kind] = {
    "path": PATHS,
    "steps": POSITIVE,
    "batch_size": POSITIVE,
    "seq_len": POSITIVE,
}

_TOP: dict[str, Kind] = {
    "model": FUNCTION,
    "save_path": TEXT,
    "seed": INTEGER,
    "relative_to": TEXT,
    "cache": LOCAL_PATH,
    "cache_bytes": NUM_BYTES,
    "sources": TABLE,
    **_SCHEDULE,
    "model_args": TABLE,
    "trainer": TABLE,
    "eval": TABLE,
    "mesh": TABLE,
}

_OF_THE_TRAINER = {
    **dict.fromkeys(_TRAINER, "write it under [trainer]"),
    **dict.fromkeys(_MESH, "write it under [mesh]"),
}
_OF_THE_TOP = dict.fromkeys(_TOP, "write it above the first [table] of the file")
_OF_PYTHON = {
    **_OF_THE_TOP,
    **dict.fromkeys(("optimizer", "loss_fn"), "the function of model returns it"),
    "curriculum": "write [sources] and [[phases]]",
    "eval_curriculum": "write [eval]",
    **dict.fromkeys(("mesh", "data_sharding"), "write [mesh]"),
    "logger": 'write log_to = ["csv"], or start the run by a Python program',
    "checkpointer": "write save_path, or start the run by a Python program",
}
"""Arguments of the trainer that are not keys of `[trainer]`, and what to do instead."""


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
    file = Path(os.path.expanduser(path))  # noqa: PTH111 - raises no error
    try:
        # Some editors write a byte order mark first, which TOML does not permit.
        content = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give a config file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error
    except IsADirectoryError as error:
        inside = file / "config.toml"
        hint = f"give {inside}" if inside.is_file() else "give a config file"
        raise ConfigError(f"{file}: is a folder; {hint}") from error
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
        table = tomllib.loads(content)
        return _changed_config(table, file, tuple(changes))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: its values are nested too deeply") from error


def _changed_config(
    table: Mapping[str, Any], file: Path, changes: tuple[str, ...]
) -> RunConfig:
    """Return a config with changes; an error names the changes that cause the error."""
    config, error = _attempt(table, file, changes)
    if config is not None:
        return config
    others = [changes[:n] + changes[n + 1 :] for n in range(len(changes))]
    causes = [
        f"--set {change}: "
        for change, other in zip(changes, others, strict=True)
        if str(_attempt(table, file, other)[1]) != str(error)
    ]
    raise ConfigError(f"{file}: {''.join(causes)}{error}") from error


def _attempt(
    table: Mapping[str, Any], file: Path, changes: tuple[str, ...]
) -> tuple[RunConfig | None, Exception | None]:
    """Return the config of a table with changes, or the error."""
    try:
        return replace(_config(changed(table, changes), file), changes=changes), None
    except (TypeError, ValueError) as error:
        return None, error


def _config(table: Mapping[str, Any], file: Path) -> RunConfig:
    given = _read(table, _TOP, elsewhere=_OF_THE_TRAINER)
    sources, schedule, readers = _data(given)
    if "cache_bytes" in given and "cache" not in given:
        raise ConfigError("cache_bytes is given without cache; write cache = a folder")
    trainer = _read(
        given.pop("trainer", {}), _TRAINER, "[trainer]", elsewhere=_OF_PYTHON
    )
    for name in SINK_NAMES:
        if name in trainer and name not in trainer.get("log_to", ()):
            raise ConfigError(
                f"[trainer.{name}] has options of a sink that log_to does not name; "
                f'write log_to = ["{name}"] under [trainer]'
            )
    if "mesh" in given:
        given["mesh"] = _mesh(given["mesh"])
    if "eval" in given:
        given["eval"] = _held_out(given["eval"], schedule.primary)
    return RunConfig(
        file=file,
        sources=sources,
        schedule=schedule,
        readers=readers,
        trainer=TrainerOptions(**trainer),
        **given,
    )


def _held_out(
    table: Mapping[str, Any], primary: str
) -> EvalConfig | dict[str, EvalConfig]:
    """Return the held-out set of `[eval]`, or the named sets of `[eval.NAME]`.

    `primary` is the name of the primary source in the training data.
    """
    if any(key in _EVAL or not isinstance(value, dict) for key, value in table.items()):
        return EvalConfig(*_data(_read(table, _EVAL, "[eval]"), "[eval]", primary))
    if not table:
        raise ConfigError("[eval] has no sources; write [eval.NAME] for each set")
    return {
        name: _held_out_set(name, of_set, primary) for name, of_set in table.items()
    }


def _held_out_set(name: str, table: Mapping[str, Any], primary: str) -> EvalConfig:
    where = f"[eval.{name}]"
    if not name:
        raise ConfigError('[eval] has a set named ""; give the set a name')
    if "path" not in table:
        return EvalConfig(*_data(_read(table, _EVAL, where), where, primary))
    given = _read(table, _EVAL_OF_ONE_CORPUS, where)
    for key in _EVAL_OF_ONE_CORPUS:
        if key not in given:
            raise ConfigError(f"{where} has a path but no {key}; write {key} = ...")
    phase = {key: given[key] for key in ("steps", "batch_size", "seq_len")}
    return EvalConfig({"self": given["path"]}, schedule_from({"phases": [phase]}))


def _data(
    given: dict[str, Any], where: str = "", primary: str = PRIMARY
) -> tuple[dict[str, tuple[str, ...]], Schedule, dict[str, dict[str, Any]]]:
    """Remove the sources and the schedule from a table; return them and the readers.

    If the table does not name the primary source, the argument `primary` is its name.
    """
    for name in ("sources", "phases"):
        if not given.get(name):
            header = "[sources]" if name == "sources" else "[[phases]]"
            raise ConfigError(f"{where or 'the file'} has no {name}; write {header}")
    named = "[sources]" if not where else f"sources of {where}"
    sources, options = _sources(given.pop("sources"), named)
    schedule = {name: given.pop(name) for name in _SCHEDULE if name in given}
    if PRIMARY not in sources:
        schedule.setdefault("primary", primary)
    _check_primary(sources, schedule.get("primary", PRIMARY), named)
    for key, table in (("policy", "policies"), ("tokenizer", "tokenizers")):
        own = {name: each[key] for name, each in options.items() if key in each}
        declared = schedule.get(table, {})
        if not isinstance(declared, Mapping):
            continue
        for name in own:
            if name in declared:
                raise ConfigError(
                    f"source {name!r} has a {key} in {named} and another in "
                    f"[{table}]; keep one"
                )
        schedule[table] = {**declared, **own}
    readers = {
        name: own
        for name, each in options.items()
        if (own := {key: each[key] for key in _READER if key in each})
    }
    try:
        return sources, schedule_from(schedule), readers
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _sources(
    table: Mapping[str, Any], where: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, Any]]]:
    """Return the paths of every source, and what else the tables of sources set."""
    sources: dict[str, tuple[str, ...]] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        entry: dict[str, Any] = {"path": value}
        if isinstance(value, dict):
            entry = _read(value, _SOURCE, f"source {name!r}", elsewhere={})
        try:
            sources[name] = PATHS(entry.get("path"))
        except Expected as error:
            hint = _OF_THE_TOP.get(name)
            raise ConfigError(
                f"source {name!r} in {where} must be {error}, got {value!r}"
                + (f"; if {name!r} is not a source, {hint}" if hint else "")
            ) from None
        options[name] = {key: x for key, x in entry.items() if key != "path"}
    return sources, options


def _check_primary(sources: Collection[str], primary: Any, where: str) -> None:
    """Raise ConfigError unless exactly one source is named `"self"` or `primary`."""
    found = [name for name in dict.fromkeys((PRIMARY, primary)) if name in sources]
    if len(found) > 1:
        raise ConfigError(
            f"{where} names the primary corpus twice, as {PRIMARY!r} and as "
            f"{primary!r}; keep one of them"
        )
    if not found and primary == PRIMARY:
        raise ConfigError(
            f'{where} names no primary corpus; write self = "path", or name it by '
            'primary = "web" above the first [table], and give every other corpus '
            "a name"
        )
    if not found:
        raise ConfigError(
            f"{where} names no primary corpus, but primary is {primary!r}; write "
            f'{primary} = "path", and give every other corpus a name'
        )


def _mesh(table: Mapping[str, Any]) -> MeshConfig:
    given = _read(table, _MESH, "[mesh]")
    axes = given.get("axes", {})
    given["axes"] = _read(axes, dict.fromkeys(axes, SIZE), "axes of [mesh]")
    for name in given.get("batch_axes", ()):
        if name not in axes:
            raise ConfigError(
                f"batch_axes of [mesh] names {name!r}, which is not among its axes; "
                f"write axes = {{ {name} = -1 }}"
            )
    if ("groups" in given) != (given.get("preset") == "hybrid"):
        raise ConfigError(
            'groups in [mesh] belongs to preset = "hybrid"; write both, or neither'
        )
    if "groups" in given and axes:
        raise ConfigError(
            'preset = "hybrid" of [mesh] chooses its axes; leave axes out'
        )
    return MeshConfig(**given)


def _read(
    table: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    where: str = "",
    *,
    elsewhere: Mapping[str, str] = _OF_THE_TOP,
) -> dict[str, Any]:
    """Check the values of a table, and return the values to store.

    `where` is the name of the table in error messages, such as `"[trainer]"`; it is
    empty for the top of the file. `elsewhere` maps keys of other tables to advice for
    the error.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            near = get_close_matches(key, list(kinds), n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"it has {', '.join(kinds)}"
            )
            raise ConfigError(
                f"{where or 'the file'} has no key {key!r}; {elsewhere.get(key, hint)}"
            )
        try:
            values[key] = kinds[key](value)
        except Expected as error:
            inside = f" in {where}" if where else ""
            raise ConfigError(f"{key}{inside} must be {error}, got {value!r}") from None
    return values
