"""The quickstart from its first line to its last."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel.quickstart.corpus import find_library, read_library
from roxxel.quickstart.folder import (
    QuickstartFolder,
    Record,
    check_seed,
    resolve_steps,
)
from roxxel.quickstart.settings import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel.quickstart.commands import Commands
    from roxxel.quickstart.corpus import Library


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        out: Folder of the run.
        steps: Steps in all; None for as many as before, or the default.
        seed: Seed; None for the run's own, or 0.
        fresh: Whether a run that lies in the folder is removed first.
        commands: What the user may type next, for the last lines.
    """

    out: Path
    steps: int | None
    seed: int | None
    fresh: bool
    commands: Commands


def quickstart(options: Options, say: Callable[[str], None]) -> None:
    """Train a small model on the standard library, or go on with doing so.

    Args:
        options: What the user asked for.
        say: Gets every line for the user.

    Raises:
        QuickstartError: It cannot be done; nothing was changed.
        CorpusError: The standard library cannot be read.
    """
    folder = QuickstartFolder(options.out)
    # All that can be refused is refused before anything is made or removed.
    record, _ = _check(folder, options)
    say("Roxxel quickstart: a small language model learns to write Python from the")
    say("sources of Python's own standard library.")
    say("")
    if record is None:
        library = _read(say)
    else:
        library = None
        say(f"Going on with the run in {folder.path}.")
    with folder.claimed():
        record, steps = _check(folder, options)
        if record is None:
            record = _start(folder, library or _read(say), steps, options.seed or 0)
        record = folder.settle(record)

        # Everything that is slow to import begins here.
        from roxxel.quickstart.training import train

        train(folder, record, steps, options.commands, say)


def _check(folder: QuickstartFolder, options: Options) -> tuple[Record | None, int]:
    """Return the run's record and its number of steps, if they fit the options."""
    if options.fresh:
        folder.check_removable()
        return None, resolve_steps(None, options.steps, folder.path)
    record = folder.read()
    if record is not None:
        check_seed(record, options.seed, folder.path)
    return record, resolve_steps(record, options.steps, folder.path)


def _read(say: Callable[[str], None]) -> Library:
    """Read the library of the running Python."""
    source = find_library()
    say(f"Reading the library of Python {platform.python_version()} from")
    say(f"  {source}")
    return read_library(source)


def _start(folder: QuickstartFolder, library: Library, steps: int, seed: int) -> Record:
    """Write the corpora of a new run, and begin it if it can be trained on them."""
    from roxxel.quickstart.curriculum import make_curriculum
    from roxxel.quickstart.data import open_corpora, write_corpora

    schedule = Schedule.of(steps)
    write_corpora(folder.staged, library)
    try:
        make_curriculum(open_corpora(folder.staged), schedule, steps)
    except BaseException:
        shutil.rmtree(folder.staged)
        raise
    return folder.begin(Record(seed, platform.python_version(), steps, schedule))
