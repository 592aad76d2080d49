"""Parse TOML, and say what to write where a text is not TOML."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from roxxel.config._declaration import ConfigError

_MOST_SHOWN = 60
_REMEDIES = {
    "Invalid value": "put text in quotes, and write true and numbers as true and 0.5",
    "Expected newline": "end the line after the value, without a comma",
    "Expected '='": "write key = value, and the name of a table in brackets",
    "Expected ']'": "close the bracket after the name of the table",
    "Invalid statement": "write key = value, and the name of a table in brackets",
    "Invalid initial character": "write a name before =, and quote an odd one",
    "Unclosed array": "separate the entries by commas, and close the ]",
    "Unclosed inline table": "separate the entries by commas, and close the }",
    "Illegal character": "end the text with its quote in the same line",
    "Unterminated string": "end the text with its quote",
    "Unescaped": "write a path with / or in single quotes",
    "Cannot overwrite": "write each key once",
    "Cannot declare": "write each table once, or each of a list as in [[phases]]",
    "Cannot mutate": "write each table in one place",
}
"""What to do, by the beginning of the error of `tomllib`."""


def parsed(text: str, where: str = "") -> dict[str, Any]:
    """Return the table of a TOML text; errors begin with `where`.

    Raises:
        ConfigError: The text is not TOML; the message says what to write instead.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        found = (x for start, x in _REMEDIES.items() if problem.startswith(start))
        remedy = next(found, "see https://toml.io for what a file may hold")
        if line := re.search(r"at line (\d+)", problem):
            shown = text.split("\n")[int(line[1]) - 1].strip()
            problem = f"{problem}, `{shown[:_MOST_SHOWN]}`"
        raise ConfigError(f"{where}not TOML: {problem}; {remedy}") from error
