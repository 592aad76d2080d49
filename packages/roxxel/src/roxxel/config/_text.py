"""Writes a config as TOML, and keeps copies of a config file in the run's folder.

Each start copies its config file to `config.toml`, which the user may edit for the next
start. `configs/step-N.toml` is the config that the run used from step N on, for each N
at which the config changed. A copy sets `relative_to`, so that relative paths in the
copy and in the original name the same files. If the start changed values of its config
by `--set`, the copies have the changed values, and a first line that lists the changes.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.output import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Schedule

    from roxxel.config._declaration import Readers, RunConfig, Sources

_CONFIG = "config.toml"
_HISTORY = "configs"
_STEP_FILE = re.compile(r"step-([0-9]+)\.toml")
_RELATIVE_TO = re.compile(r"^[ \t]*relative_to[ \t]*=.*\n?", re.MULTILINE)


def keep_config(config: RunConfig, run: Path, step: int) -> None:
    """Copy a config into the folder of its run.

    Args:
        config: The config in use from `step` on.
        run: The run's folder.
        step: Steps that the run has done.

    Raises:
        OSError: A copy cannot be written, or the file of the config is missing.
    """
    content = _content(config)
    if config.file.resolve() != (run / _CONFIG).resolve():
        _write(run / _CONFIG, _moved(content, config, run))
    copy = _moved(content, config, run / _HISTORY)
    last = _kept(run, step)
    if last is None or last.read_text(encoding="utf-8") != copy:
        _write(run / _HISTORY / f"step-{step}.toml", copy)


def newest_config(run: Path) -> Path | None:
    """Return the path of the config that a run used last; None if no copy exists.

    The copy in `configs/` comes before `config.toml`, because the user may have edited
    `config.toml` for the next start.
    """
    newest = _kept(run) or run / _CONFIG
    return newest if newest.is_file() else None


def config_at(run: Path, step: int) -> Path | None:
    """Return the path of the config under which update `step` ran; None if unknown.

    `step` counts updates from 1. A config that is in use from step k on, counted from
    0, runs the updates k + 1 and later.
    """
    return _kept(run, max(0, step - 1))


def config_text(config: RunConfig) -> str:
    """Return the TOML text of a config, without values that equal their defaults."""
    schedule, mesh = config.schedule, config.mesh
    top = {
        "relative_to": config.relative_to if config.relative_to != "." else None,
        "model": config.model,
        "save_path": config.save_path,
        "seed": config.seed,
        "cache": config.cache,
        "cache_bytes": config.cache_bytes,
        **_rules(schedule),
    }
    blocks = [
        _pairs(top),
        _table("sources", _sources(config.sources, config.readers)),
        _table("policies", schedule.policies),
        _table("tokenizers", schedule.tokenizers),
        _table("without", schedule.without),
        *("[[phases]]\n" + _pairs(asdict(phase)) for phase in schedule.phases),
        _table("model_args", config.model_args),
        _table("trainer", config.trainer.given()),
    ]
    for name, held_out in config.held_out.items():
        values = {
            "sources": _sources(held_out.sources, held_out.readers),
            **_rules(held_out.schedule),
            "policies": held_out.schedule.policies or None,
            "tokenizers": held_out.schedule.tokenizers or None,
            "without": held_out.schedule.without or None,
            "phases": held_out.schedule.phases,
        }
        blocks.append(_table(f"eval.{_key(name)}" if name else "eval", values))
    if mesh is not None:
        blocks.append(_table("mesh", {n: v or None for n, v in asdict(mesh).items()}))
    return "\n".join(filter(None, blocks))


def _rules(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule's fields except phases and policies; defaults become None."""
    return {
        "primary": schedule.primary if schedule.primary != "self" else None,
        "longest": schedule.longest,
        "max_epochs": schedule.max_epochs,
        "overlap": schedule.overlap or None,
        "skips": schedule.skips or None,
    }


def _sources(sources: Sources, readers: Readers) -> dict[str, Any]:
    """Return the values of a table of sources."""
    paths = {name: x[0] if len(x) == 1 else x for name, x in sources.items()}
    return {
        name: {"path": path, **readers[name]} if name in readers else path
        for name, path in paths.items()
    }


def _table(name: str, values: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + _pairs(values) if values else ""


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(
        f"{_key(name)} = {_value(value)}\n"
        for name, value in values.items()
        if value is not None
    )


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("-", "_").isidentifier()
    return name if is_bare else _quoted(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        inside = ", ".join(
            f"{_key(k)} = {_value(v)}" for k, v in pairs if v is not None
        )
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        items = map(_value, cast("Sequence[Any]", value))
        return f"[{', '.join(items)}]"
    raise TypeError(f"TOML has no value for a {type(value).__name__}: {value!r}")


def _quoted(text: str) -> str:
    """Return a TOML string."""
    # Every JSON string is a TOML string, except that TOML forbids an unescaped DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _kept(run: Path, step: float = math.inf) -> Path | None:
    """Return the copy of the config used at a step; None if all copies are newer."""
    found = {
        int(name[1]): path
        for path in (run / _HISTORY).glob("step-*.toml")
        if (name := _STEP_FILE.fullmatch(path.name))
    }
    before = [kept for kept in found if kept <= step]
    return found[max(before)] if before else None


def _content(config: RunConfig) -> str:
    """Return the text of the config's file, or a new text for a changed config."""
    if not config.changes:
        return config.file.read_text(encoding="utf-8")
    changes = " ".join(f"--set {_quoted(change)}" for change in config.changes)
    return f"# {config.file.name} with {changes}\n{config_text(config)}"


def _moved(content: str, config: RunConfig, folder: Path) -> str:
    """Return the text for a copy of the config in `folder`.

    The text is `content` with `relative_to` set so that relative paths still name the
    same files.
    """
    relative_to = os.path.relpath(config.folder.resolve(), folder.resolve())
    head, bracket, rest = content.partition("\n[")
    if not head.startswith("["):
        head = _RELATIVE_TO.sub("", head)
    line = f"relative_to = {_quoted(relative_to)}\n" if relative_to != "." else ""
    text = line + head + bracket + rest
    # `_RELATIVE_TO` also matches inside multi-line strings. If the text has changed for
    # that reason, write the parsed config instead, which loses the file's comments.
    wanted = {**tomllib.loads(content), "relative_to": relative_to}
    if {"relative_to": ".", **_parsed(text)} != wanted:
        text = config_text(replace(config, relative_to=relative_to))
    return text


def _parsed(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _write(path: Path, content: str) -> None:
    """Write a file atomically, unless the file already has this content."""
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.encode(), path.with_name(path.name + ".tmp"))
