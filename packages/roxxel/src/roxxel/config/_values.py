"""The values of a config as text, to compare configs of runs and of starts."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from roxxel.config._text import config_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from roxxel.config._declaration import EvalConfig, RunConfig


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
        eval={name: _moved(held, config) for name, held in config.held_out.items()},
    )
    return dict(_flat("", tomllib.loads(config_text(same_form))))


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


def _moved(held_out: EvalConfig, config: RunConfig) -> EvalConfig:
    return replace(held_out, sources=_absolute(held_out.sources, config))


def _absolute(
    sources: Mapping[str, tuple[str, ...]], config: RunConfig
) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(
            found if isinstance(found := config.corpus(text), str) else _path(found)
            for text in texts
        )
        for name, texts in sources.items()
    }


def _path(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - a link may be what the user edits
