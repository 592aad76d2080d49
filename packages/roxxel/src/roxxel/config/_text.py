"""Writes a config as TOML, and keeps copies of a config file in the run's folder.

Each start copies its config file to `config.toml`, which the user may edit for the next
start. `configs/step-N.toml` is the config that the run used from step N on, for each N
at which the config changed. A copy sets `relative_to`, so that relative paths in the
copy and in the original name the same files. If the start changed values of its config
by `--set`, the copies have the changed values, and a line that lists the changes. The
comments of the file stay.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tomlkit
from roxxel_store.files import matches_in
from roxxel_store.output import replace_file
from roxxel_train.config import TrainConfig

from roxxel.config._changes import change_all

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Schedule
    from tomlkit import TOMLDocument
    from tomlkit.items import AoT, InlineTable, Item, Table

    from roxxel.config._declaration import EvalConfig, Readers, RunConfig, Sources

    _Keys = TypeVar("_Keys", TOMLDocument, Table, InlineTable)

_ABSENT = object()
_CONFIG = "config.toml"
_HISTORY = "configs"
_STEP_FILE = re.compile(r"step-([0-9]+)\.toml")


def keep_config(config: RunConfig, run: Path, step: int) -> None:
    """Copy a config into the folder of its run.

    Args:
        config: The config in use from `step` on.
        run: The run's folder.
        step: Steps that the run has done.

    Raises:
        OSError: A copy cannot be written, or the file of the config is missing.
    """
    if config.file.resolve() != (run / _CONFIG).resolve():
        _write(run / _CONFIG, _copied(config, run))
    copy = _copied(config, run / _HISTORY)
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
    tables: dict[str, Mapping[str, Any]] = {
        "sources": _sources(config.sources, config.readers),
        "policies": schedule.policies,
        "tokenizers": schedule.tokenizers,
        "without": schedule.without,
        "model_args": config.model_args,
        # In one order, whether the values were given or read.
        "trainer": {
            each.name: False if value is None else value
            for each in fields(TrainConfig)
            if (value := config.trainer.get(each.name, _ABSENT)) is not _ABSENT
        },
    }
    document = tomlkit.document()
    _add(document, top)
    for name, values in tables.items():
        if name == "model_args":
            document["phases"] = _phases(schedule)
        if values:
            document[name] = _add(tomlkit.table(), values)
    sets = {name: _held_out(held_out) for name, held_out in config.held_out.items()}
    if sets:
        document["eval"] = sets.get("") or _parent(sets)
    if config.proxy is not None:
        document["proxy"] = _add(tomlkit.table(), asdict(config.proxy))
    if mesh is not None:
        values = {name: value or None for name, value in asdict(mesh).items()}
        document["mesh"] = _add(tomlkit.table(), values)
    return tomlkit.dumps(document)


def _phases(schedule: Schedule) -> AoT:
    tables = tomlkit.aot()
    for phase in schedule.phases:
        tables.append(_add(tomlkit.table(), asdict(phase)))
    return tables


def _held_out(held_out: EvalConfig) -> Table:
    schedule = held_out.schedule
    values = {
        "sources": _sources(held_out.sources, held_out.readers),
        **_rules(schedule),
        "policies": schedule.policies or None,
        "tokenizers": schedule.tokenizers or None,
        "without": schedule.without or None,
        "phases": schedule.phases,
    }
    return _add(tomlkit.table(), values)


def _parent(tables: Mapping[str, Table]) -> Table:
    """Return a table that only holds other tables, so it needs no header."""
    parent = tomlkit.table(is_super_table=True)
    for name, table in tables.items():
        parent.append(name, table)
    return parent


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


def _add(table: _Keys, values: Mapping[str, Any]) -> _Keys:
    """Add keys to a table, except those whose value is None; return the table."""
    for name, value in values.items():
        if value is not None:
            table.append(name, _item(value))
    return table


def _item(value: Any) -> Item:
    """Return a value of TOML on one line."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return _add(tomlkit.inline_table(), cast("Mapping[str, Any]", value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        array = tomlkit.array()
        for each in cast("Sequence[Any]", value):
            array.append(_item(each))
        return array
    return tomlkit.item(value)


def _kept(run: Path, step: float = math.inf) -> Path | None:
    """Return the copy of the config used at a step; None if all copies are newer."""
    found = {
        int(name[1]): path
        for path in matches_in(run / _HISTORY, "step-*.toml")
        if (name := _STEP_FILE.fullmatch(path.name))
    }
    before = [kept for kept in found if kept <= step]
    return found[max(before)] if before else None


def _copied(config: RunConfig, folder: Path) -> str:
    """Return the text for a copy of the config's file in `folder`."""
    changes = " ".join(
        f"--set {tomlkit.item(change).as_string()}" for change in config.changes
    )
    comments = [f"{config.file.name} with {changes}"] if changes else []
    return changed_text(config, folder, comments)


def changed_text(config: RunConfig, folder: Path, comments: Sequence[str] = ()) -> str:
    """Return the text of a config's file for a file in `folder`, with its changes.

    The comments of the file stay. The text sets `relative_to` so that relative paths
    still name the same files.

    Args:
        config: The config; its `changes` are made in the text.
        folder: Folder of the new file.
        comments: Lines of a comment above the text.

    Raises:
        OSError: The file of the config cannot be read.
    """
    document = tomlkit.parse(config.file.read_text(encoding="utf-8-sig"))
    change_all(document, config.changes)
    document.pop("relative_to", None)
    relative_to = os.path.relpath(config.folder.resolve(), folder.resolve())
    head = tomlkit.document()
    if relative_to != ".":
        head["relative_to"] = relative_to
    for line in comments:
        head.add(tomlkit.comment(line))
    return tomlkit.dumps(head) + tomlkit.dumps(document)


def _write(path: Path, content: str) -> None:
    """Write a file atomically, unless the file already has this content."""
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.encode(), path.with_name(path.name + ".tmp"))
