"""Reads the file of a sweep, and the config of the run that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.urls import expanded

from roxxel.config import ConfigError, load_config, sweep_from, sweep_table

if TYPE_CHECKING:
    import os

    from roxxel.config import SweepConfig


def load_sweep(path: str | os.PathLike[str]) -> SweepConfig:
    """Read the file of a sweep.

    For example::

        config = "run.toml"         # the run whose blend you want
        scale = 0.0625              # of each proxy; or tokens = 2_000_000
        save_path = "sweep"         # default: the name of this file without .toml

        [drawn]                     # around the natural shares
        number = 24
        concentration = 10

        [[blends]]                  # given; one table for all phases, or a list
        weights = { web = 0.7, code = 0.3 }

        [target]                    # what counts; default: all held-out sets alike
        code = 1

    Raises:
        ConfigError: The file or its base config is missing or wrong; the message names
            the file and the key.
        OSError: A file cannot be read.
    """
    file = expanded(path)
    try:
        found = sweep_table(file.read_text(encoding="utf-8-sig"))
        base = load_config(file.parent / found.config)
        return sweep_from(found, file, base)
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; give the file of a sweep") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not text in UTF-8 ({error.reason})") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
