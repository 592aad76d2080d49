"""From a `RunConfig` to curricula over its corpora; JAX is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_curriculum import Curriculum, CurriculumError
from roxxel_format import Roxxel

from roxxel.config._declaration import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum import Schedule

    from roxxel.config._declaration import RunConfig, Sources


def open_curriculum(config: RunConfig) -> Curriculum:
    """Return the curriculum of a run over its corpora.

    Raises:
        ConfigError: The schedule cannot be met by them; the message names the file.
        OSError: A corpus is not there.
        ShardError: A shard is damaged.
    """
    return _curriculum(config, config.sources, config.schedule)


def open_eval_curriculum(config: RunConfig) -> Curriculum | None:
    """Return what the held-out loss is taken over, None without `[eval]`.

    Raises:
        ConfigError: As `open_curriculum` does; so do the others.
    """
    if config.eval is None:
        return None
    return _curriculum(config, config.eval.sources, config.eval.schedule, "[eval]: ")


def _curriculum(
    config: RunConfig, sources: Sources, schedule: Schedule, where: str = ""
) -> Curriculum:
    corpora = {
        name: Roxxel(_filepath([config.path(path) for path in paths]))
        for name, paths in sources.items()
    }
    primary = corpora.pop("self")
    try:
        return schedule.curriculum(primary, corpora)
    except CurriculumError as error:
        raise ConfigError(f"{config.file}: {where}{error}") from error


def _filepath(paths: list[Path]) -> Path | list[Path]:
    """Return one path alone, for errors name a list as a whole."""
    return paths[0] if len(paths) == 1 else paths
