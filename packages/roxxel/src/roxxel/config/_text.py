"""From a `RunConfig` to TOML, such as `parse_config` reads back."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from roxxel_curriculum import Schedule

    from roxxel.config._declaration import RunConfig, Sources


def config_text(config: RunConfig) -> str:
    """Return the TOML of a config: what is at its default is left out."""
    top = {
        "relative_to": config.relative_to if config.relative_to != "." else None,
        "model": config.model,
        "save_path": config.save_path,
        "seed": config.seed,
        **_rules(config.schedule),
    }
    blocks = [_pairs(top), _table("sources", _sources(config.sources))]
    if config.schedule.policies:
        blocks.append(_table("policies", config.schedule.policies))
    blocks += ["[[phases]]\n" + _pairs(_fields(p)) for p in config.schedule.phases]
    if config.model_args:
        blocks.append(_table("model_args", config.model_args))
    trainer = config.trainer.given()
    if trainer:
        blocks.append(_table("trainer", trainer))
    if config.eval is not None:
        schedule = config.eval.schedule
        held_out = {
            "sources": _sources(config.eval.sources),
            **_rules(schedule),
            "policies": schedule.policies or None,
            "phases": schedule.phases,
        }
        blocks.append(_table("eval", held_out))
    if config.mesh is not None:
        mesh = config.mesh
        axes, batch_axes = mesh.axes or None, mesh.batch_axes or None
        named = {"preset": mesh.preset, "axes": axes, "batch_axes": batch_axes}
        blocks.append(_table("mesh", named))
    return "\n".join(blocks)


def quoted(text: str) -> str:
    """Return a text as TOML writes it."""
    # JSON's escapes are TOML's; only DEL may stand bare in JSON.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rules(schedule: Schedule) -> dict[str, Any]:
    """Return what a schedule has beside phases and policies."""
    return {
        "longest": schedule.longest,
        "max_epochs": schedule.max_epochs,
        "overlap": schedule.overlap or None,
        "skips": schedule.skips or None,
    }


def _sources(sources: Sources) -> dict[str, Any]:
    return {
        name: paths[0] if len(paths) == 1 else paths for name, paths in sources.items()
    }


def _table(name: str, values: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + _pairs(values)


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(
        f"{_key(name)} = {_value(value)}\n"
        for name, value in values.items()
        if value is not None
    )


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("-", "_").isidentifier()
    return name if is_bare else quoted(name)


def _fields(value: Any) -> dict[str, Any]:
    return {k: v for k, v in asdict(value).items() if v is not None}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if is_dataclass(value):
        value = _fields(value)
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
