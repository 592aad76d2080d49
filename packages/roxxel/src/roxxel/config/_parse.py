"""From TOML to a `RunConfig`; nothing is opened and no accelerator is started."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_curriculum import Schedule, schedule_from

from roxxel.config import _values as kind
from roxxel.config._declaration import (
    ConfigError,
    EvalConfig,
    MeshConfig,
    RunConfig,
    TrainerOptions,
)
from roxxel.config._values import Expected, read_table

if TYPE_CHECKING:
    import os

_SCHEDULE = {entry.name: kind.anything for entry in fields(Schedule)}

_TRAINER: dict[str, kind.Kind] = {
    "log_every": kind.positive,
    "eval_every": kind.positive,
    "checkpoint_every": kind.positive,
    "max_to_keep": kind.positive,
    "best_metric": kind.text,
    "grad_accum_steps": kind.positive,
    "fields": kind.texts,
    "strict_sharding": kind.boolean,
    "init_from": kind.text,
    "profile": kind.span,
    "hang_after_s": kind.seconds,
    "check": kind.one_of("headers", "blocks"),
}

_MESH: dict[str, kind.Kind] = {
    "preset": kind.one_of("data-parallel", "fsdp"),
    "axes": kind.table,
    "batch_axes": kind.texts,
}

_EVAL: dict[str, kind.Kind] = {"sources": kind.table, **_SCHEDULE}

_TOP: dict[str, kind.Kind] = {
    "model": kind.function_name,
    "save_path": kind.text,
    "seed": kind.integer,
    "relative_to": kind.text,
    "sources": kind.table,
    **_SCHEDULE,
    "model_args": kind.table,
    "trainer": kind.table,
    "eval": kind.table,
    "mesh": kind.table,
}

_OF_THE_TRAINER = {
    **dict.fromkeys(_TRAINER, "write it under [trainer]"),
    **dict.fromkeys(("preset", "axes", "batch_axes"), "write it under [mesh]"),
}
_OF_THE_TOP = dict.fromkeys(_TOP, "write it above the first [table] of the file")


def load_config(path: str | os.PathLike[str]) -> RunConfig:
    """Read a config file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: It is not there or not TOML, a key is unknown (the near one is
            suggested), or a value cannot be meant; the message names the file.
    """
    file = Path(path)
    try:
        content = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give a config file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error
    except IsADirectoryError as error:
        inside = file / "config.toml"
        hint = f"give {inside}" if inside.is_file() else "give a config file"
        raise ConfigError(f"{file}: is a folder; {hint}") from error
    return parse_config(content, file)


def parse_config(content: str, file: str | os.PathLike[str]) -> RunConfig:
    """Return what a config file says.

    Args:
        content: TOML.
        file: Where it lies, or would lie: paths are relative to its folder.

    Raises:
        ConfigError: As `load_config` does.
    """
    file = Path(file)
    try:
        return _config(tomllib.loads(content), file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: its values are nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _config(table: Mapping[str, Any], file: Path) -> RunConfig:
    given = read_table(table, _TOP, elsewhere=_OF_THE_TRAINER)
    sources, schedule = _data(given)
    trainer = read_table(
        given.pop("trainer", {}), _TRAINER, "[trainer]", elsewhere=_OF_THE_TOP
    )
    if "mesh" in given:
        given["mesh"] = _mesh(given["mesh"])
    if "eval" in given:
        held_out = read_table(given["eval"], _EVAL, "[eval]", elsewhere=_OF_THE_TOP)
        given["eval"] = EvalConfig(*_data(held_out, "[eval]"))
    return RunConfig(
        file=file,
        sources=sources,
        schedule=schedule,
        trainer=TrainerOptions(**trainer),
        **given,
    )


def _data(
    given: dict[str, Any], where: str = ""
) -> tuple[dict[str, tuple[str, ...]], Schedule]:
    """Take the sources and the schedule out of a table."""
    place = where or "the file"
    for name in ("sources", "phases"):
        if not given.get(name):
            header = "[sources]" if name == "sources" else "[[phases]]"
            raise ConfigError(f"{place} has no {name}; write {header}")
    named = "[sources]" if not where else f"sources of {where}"
    sources, policies = _sources(given.pop("sources"), named)
    schedule = {name: given.pop(name) for name in _SCHEDULE if name in given}
    declared = schedule.get("policies", {})
    if isinstance(declared, Mapping):
        for name in policies:
            if name in declared:
                raise ConfigError(
                    f"source {name!r} has a policy in {named} and another in "
                    "[policies]; keep one"
                )
        schedule["policies"] = {**declared, **policies}
    try:
        return sources, schedule_from(schedule)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _sources(
    table: Mapping[str, Any], where: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """Return the paths of each source, and the policies of some."""
    sources: dict[str, tuple[str, ...]] = {}
    policies: dict[str, Any] = {}
    for name, value in table.items():
        entry: dict[str, Any] = {"path": value}
        if isinstance(value, Mapping):
            kinds = {"path": kind.anything, "policy": kind.anything}
            entry = read_table(kind.table(value), kinds, f"source {name!r}")
        try:
            sources[name] = _paths(entry.get("path"))
        except Expected as error:
            hint = _OF_THE_TOP.get(name)
            raise ConfigError(
                f"source {name!r} in {where} must be {error}, got {value!r}"
                + (f"; if {name!r} is no source, {hint}" if hint else "")
            ) from None
        if "policy" in entry:
            policies[name] = entry["policy"]
    if "self" not in sources:
        raise ConfigError(
            f'{where} names no primary corpus; write self = "path", and give the '
            "others names of your own"
        )
    return sources, policies


def _paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value:
        return (value,)
    try:
        return kind.texts(value)
    except Expected:
        raise Expected("a path, a pattern, or a list of them") from None


def _mesh(table: Mapping[str, Any]) -> MeshConfig:
    given = read_table(table, _MESH, "[mesh]", elsewhere=_OF_THE_TOP)
    axes = given.get("axes", {})
    given["axes"] = read_table(axes, dict.fromkeys(axes, _size), "axes of [mesh]")
    for name in given.get("batch_axes", ()):
        if name not in axes:
            raise ConfigError(
                f"batch_axes of [mesh] names {name!r}, which is not among its axes; "
                f"write axes = {{ {name} = -1 }}"
            )
    return MeshConfig(**given)


def _size(value: Any) -> int:
    number = kind.integer(value)
    if number < 1 and number != -1:
        raise Expected("a number of devices, or -1 for all that are left")
    return number
