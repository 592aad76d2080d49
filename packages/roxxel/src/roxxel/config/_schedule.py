"""Read schedules: phases, policies and rules, without the corpora."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_curriculum import Schedule
from roxxel_store.arguments import read
from roxxel_store.files import read_file
from roxxel_store.urls import expanded

from roxxel.config._declaration import ConfigError
from roxxel.config._toml import parsed

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_MAX_BYTES = 1 << 26


def schedule_from(table: Mapping[str, Any]) -> Schedule:
    """Return the schedule in a table, such as one that was read from JSON.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.

    >>> phase = {"steps": 9, "batch_size": 4, "seq_len": 129}
    >>> schedule_from({"phases": [phase], "overlap": 1}).overlap
    1
    """
    try:
        return read(Schedule, table)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def parse_schedule(text: str) -> Schedule:
    """Return the schedule in the text of a TOML file.

    For example::

        primary = "web"                 # the name of the primary source; omit for self
        overlap = 1
        skips = [[1200, 3]]             # before step 1200, skip the data of 3 steps

        [policies]
        code = "drop"                   # or "repeat", "stop", or a number of epochs
        math = { epochs = 2, then = "stop" }

        [tokenizers]                    # of corpora that record none
        code = "gpt2"

        [without]                       # what the run does not learn
        code = [17, [200, 300]]         # documents 17, and 200 to 299
        web = ["tokens:[512,1024)"]     # tokens by their index, such as a damaged block
        math = "withdrawn.txt"          # a number on each line; or a .npy file
        books = ["books_scan.json", 3]  # what `roxxel scan` found, and document 3

        [[phases]]
        steps = 1000                    # or epochs = 0.5, or tokens = 1_000_000
        batch_size = 16
        seq_len = 1025
        weights = { web = 0.7, code = 0.2, math = 0.1 }

    Raises:
        ConfigError: The text is not TOML, a key is unknown, or a value is wrong.
    """
    return schedule_from(parsed(text))


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a TOML file; see `parse_schedule`.

    Paths of files in `without` are relative to the folder of the file.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The file is not a schedule; the message names the file.
    """
    file = expanded(path)
    data = read_file(file, _MAX_BYTES, ConfigError, "give a schedule")
    try:
        schedule = parse_schedule(data.decode("utf-8-sig"))
        return schedule.relative_to(file.parent)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
