"""Parse TOML, and say what to write where a text is not TOML."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from roxxel.config._declaration import ConfigError

_MOST_SHOWN = 60
_REMEDY = (
    "put text in quotes, end a line after its value, close every bracket and quote, "
    "and write each key and each table once"
)


def parsed(text: str, where: str = "") -> dict[str, Any]:
    """Return the table of a TOML text; errors begin with `where`.

    Raises:
        ConfigError: The text is not TOML; the message says what to write instead.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        if line := re.search(r"at line (\d+)", problem):
            shown = text.split("\n")[int(line[1]) - 1].strip()
            problem = f"{problem}, `{shown[:_MOST_SHOWN]}`"
        raise ConfigError(f"{where}not TOML: {problem}; {_REMEDY}") from error
