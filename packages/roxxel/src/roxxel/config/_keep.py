"""The config of a run, kept in the run's folder.

`config.toml` is the one that was used last, `configs/step-N.toml` the one that was used
from step N on, for every N at which it changed. Paths in a copy mean what they meant in
the original: the copy says what they are relative to.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel.config._text import config_text, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel.config._declaration import RunConfig

CONFIG = "config.toml"
HISTORY = "configs"
_STEP_FILE = re.compile(r"step-([0-9]+)\.toml")
_RELATIVE_TO = re.compile(r"^[ \t]*relative_to[ \t]*=.*\n?", re.MULTILINE)


def keep_config(config: RunConfig, run: Path, step: int) -> None:
    """Keep a config in the folder of the run that it is used for.

    Args:
        config: What is used from now on.
        run: The run's folder.
        step: Steps that the run has done.

    Raises:
        OSError: A copy cannot be written, or the config has gone.
    """
    content = config.file.read_text(encoding="utf-8")
    if config.file.resolve() != (run / CONFIG).resolve():
        _write(run / CONFIG, _moved(content, config, run))
    history = run / HISTORY
    copy = _moved(content, config, history)
    last = _used_at(history, step)
    if last is None or last.read_text(encoding="utf-8") != copy:
        _write(history / f"step-{step}.toml", copy)


def kept_steps(run: Path) -> list[int]:
    """Return the steps from which on another config was used."""
    history = run / HISTORY
    names = [entry.name for entry in history.iterdir()] if history.is_dir() else []
    return sorted(int(m[1]) for name in names if (m := _STEP_FILE.fullmatch(name)))


def newest_config(run: Path) -> Path | None:
    """Return the config that a run has used last; None where it kept none.

    It is a copy, since `config.toml` itself may have been edited for the next start.
    """
    kept = kept_steps(run)
    newest = run / HISTORY / f"step-{kept[-1]}.toml" if kept else run / CONFIG
    return newest if newest.is_file() else None


def _used_at(history: Path, step: int) -> Path | None:
    """Return the config that was used when a step was reached."""
    before = [kept for kept in kept_steps(history.parent) if kept <= step]
    return history / f"step-{before[-1]}.toml" if before else None


def _moved(content: str, config: RunConfig, folder: Path) -> str:
    """Return the text of a config whose copy lies in another folder."""
    here, there = config.folder.resolve(), folder.resolve()
    relative_to = os.path.relpath(here, there)
    head, bracket, rest = content.partition("\n[")
    if not head.startswith("["):
        head = _RELATIVE_TO.sub("", head)
    line = f"relative_to = {quoted(relative_to)}\n" if relative_to != "." else ""
    text = line + head + bracket + rest
    # A text of several lines may hold what looks like a key; then comments are lost.
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
    """Put a file in its place, whole or not at all."""
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)
