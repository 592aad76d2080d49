"""A config as TOML text: of its values, of its file, and compared value by value."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tomlkit
from roxxel_store.urls import absolute

from roxxel.config._declaration import ConfigError
from roxxel.config._parse import change_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from roxxel_curriculum import Schedule
    from tomlkit import TOMLDocument
    from tomlkit.items import AoT, InlineTable, Item, Table

    from roxxel.config._declaration import EvalConfig, Readers, RunConfig, Sources

    _Keys = TypeVar("_Keys", TOMLDocument, Table, InlineTable)


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
        "trainer": {
            each.name: False if value is None else value
            for each in fields(config.trainer)
            if (value := getattr(config.trainer, each.name)) != each.default
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


def config_table(config: RunConfig) -> dict[str, Any]:
    """Return the values that `config_text` writes, as TOML is parsed."""
    return tomllib.loads(config_text(config))


def changed_text(
    config: RunConfig, folder: Path | None, comments: Sequence[str] = ()
) -> str:
    """Return the text of a config's file for a file in `folder`, with its changes.

    The comments of the file stay. The text sets `relative_to` so that relative paths
    still name the same files.

    Args:
        config: The config; its `changes` are made in the text.
        folder: Folder of the new file; None for any folder, by an absolute path.
        comments: Lines of a comment above the text.

    Raises:
        OSError: The file of the config cannot be read.
    """
    if config.file.is_file():
        document = _of_file(config)
        change_all(document, config.changes)
    else:  # A program has made the config.
        document = tomlkit.parse(config_text(config))
    document.pop("relative_to", None)
    relative_to = str(config.folder.resolve())
    if folder is not None:
        relative_to = os.path.relpath(relative_to, folder.resolve())
    head = tomlkit.document()
    if relative_to != ".":
        head["relative_to"] = relative_to
    for line in comments:
        head.add(tomlkit.comment(line))
    return tomlkit.dumps(head) + tomlkit.dumps(document)


def withdrawn_text(config: RunConfig, documents: Mapping[str, Sequence[int]]) -> str:
    """Return the text of a config's file with more documents under `[without]`.

    The comments of the file stay. Documents that the file already names are not added.

    Args:
        config: The config, unchanged from its file.
        documents: Rising numbers of documents by source.

    Raises:
        ConfigError: A list of documents in a file has a name that no array can hold.
        OSError: The file cannot be read.
    """
    document = _of_file(config)
    if "without" not in document:
        document["without"] = tomlkit.table()
    table: Any = document["without"]
    for source, numbers in documents.items():
        withdrawn = table.get(source, tomlkit.array())
        if isinstance(withdrawn, str):
            withdrawn = _listed(withdrawn, f"{config.file}: without.{source}")
        named = _numbers(withdrawn)
        for item in _ranges([each for each in numbers if each not in named]):
            withdrawn.append(item)
        if len(withdrawn):
            table[source] = withdrawn
    return tomlkit.dumps(document)


def config_values(config: RunConfig) -> dict[str, str]:
    """Return the values of a config by dotted key.

    Values that equal their defaults are left out, and paths of corpora are absolute, so
    that different spellings of one config compare equal.
    """
    same_form = replace(
        config,
        save_path=None,
        relative_to=".",
        sources=_absolute(config.sources, config),
        eval={
            name: replace(held, sources=_absolute(held.sources, config))
            for name, held in config.held_out.items()
        },
    )
    return dict(_flat("", config_table(same_form)))


def config_differences(
    configs: Sequence[Mapping[str, str] | None],
) -> list[tuple[str, list[str]]]:
    """Return the keys whose values differ, each with the value in every config.

    An empty text stands for the default. A run without a config has no values.
    """
    known = [config for config in configs if config is not None]
    keys = dict.fromkeys(key for config in known for key in config)
    return [
        (key, ["" if config is None else config.get(key, "") for config in configs])
        for key in keys
        if len({config.get(key) for config in known}) > 1
    ]


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
    """Return a table of only other tables, which needs no header."""
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


def _of_file(config: RunConfig) -> TOMLDocument:
    return tomlkit.parse(config.file.read_text(encoding="utf-8-sig"))


def _listed(file: str, key: str) -> Any:
    """Return an array of only this file, to which documents can be added."""
    # Only such names are names of files in an array too, and not of documents.
    if not (file.endswith((".txt", ".npy", ".json")) or file.startswith("tokens:")):
        raise ConfigError(
            f"{key} is the file {file!r}, which cannot be named beside documents; end "
            "its name with .txt, or add the documents to it"
        )
    array = tomlkit.array()
    array.append(str(file))
    return array


def _numbers(withdrawn: Sequence[Any]) -> set[int]:
    """Return the documents that an array names by numbers and pairs `[start, stop]`."""
    numbers: set[int] = set()
    for each in withdrawn:
        if isinstance(each, int):
            numbers.add(int(each))
        elif not isinstance(each, str):
            numbers.update(range(int(each[0]), int(each[1])))
    return numbers


def _ranges(numbers: Sequence[int]) -> list[int | list[int]]:
    """Return rising numbers, with consecutive ones as pairs `[start, stop]`."""
    found: list[int | list[int]] = []
    for number in numbers:
        last = found[-1] if found else None
        if isinstance(last, list) and last[1] == number:
            last[1] = number + 1
        elif last == number - 1:
            found[-1] = [number - 1, number + 1]
        else:
            found.append(number)
    return found


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each value in nested tables and lists of tables, with its dotted key."""
    if isinstance(value, dict) and value:
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from _flat(f"{prefix}[{index}]", inner)
    else:
        is_text = isinstance(value, str)
        yield prefix, value if is_text else json.dumps(value, default=str)


def _absolute(
    sources: Mapping[str, tuple[str, ...]], config: RunConfig
) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(absolute(config.corpus(text)) for text in texts)
        for name, texts in sources.items()
    }
