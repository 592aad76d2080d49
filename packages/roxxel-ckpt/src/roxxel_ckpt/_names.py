"""The names of leaves, of a checkpoint's files, and of steps in messages.

A leaf's name is its path in the state, as text. The path of its files' folder works on
every file system, in every bucket and library: a short part of lowercase ASCII
characters stays, and any other part becomes a similar text with a digest, which makes
it unique. So two names that differ only in upper and lower case, in how an accent is
encoded, or in a character that a disk refuses have different files, also after a copy
to another disk.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

COMMIT_FILE = "checkpoint.json"
STATE = "state"
# First part of the names of leaves that `save(state=)` was given.
STATE_ROOT = "state"
METADATA_FILE = f"{STATE}/_METADATA"
SMALL_FILE = "small.safetensors"

# Windows has these names for devices, whatever the folder.
_PLAIN = re.compile(r"(?!(?:aux|con|nul|prn|com[0-9]|lpt[0-9])$)[a-z0-9_-]{1,64}")
# S3 allows names of 1 024 bytes, of which the folder of the run needs a part.
_LONGEST_PATH = 400


def leaf_name(parts: Iterable[str]) -> str:
    """Return the name of the leaf whose path has these parts.

    Different paths have different names. A name can be printed.

    Example:
        >>> leaf_name(["model", "a/b", "100 %"])
        'model/a%2Fb/100 %25'
    """
    return "/".join("".join(map(_escaped, part)) for part in parts)


def leaf_path(name: str) -> str:
    """Return the path of the folder of a leaf's files, in the arrays of a step.

    Example:
        >>> leaf_path("model/blocks/0/kernel")
        'model/blocks/0/kernel'
        >>> leaf_path("model/Dense_0/kernel")
        'model/dense_0~b45260976bfb0feb8420/kernel'
    """
    path = "/".join(
        part if _PLAIN.fullmatch(part) else _replaced(part) for part in name.split("/")
    )
    return path if len(path) <= _LONGEST_PATH else _replaced(name)


def _replaced(text: str) -> str:
    alike = re.sub(r"[^a-z0-9_]+", "-", text.lower())[:32].strip("-")
    data = text.encode("utf-8", "surrogatepass")
    return f"{alike}~{hashlib.blake2b(data, digest_size=10).hexdigest()}"


def _escaped(character: str) -> str:
    if character not in "%/" and character.isprintable():
        return character
    data = character.encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in data)


def listed(steps: list[int]) -> str:
    """Return steps as text: the first ten, and the number of further steps."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def in_groups(sizes: Mapping[str, int], num_bytes: int) -> Iterator[list[str]]:
    """Yield names in groups, in order; a group has at most `num_bytes`, or one file.

    `sizes` maps names to numbers of bytes.
    """
    group: list[str] = []
    left = num_bytes
    for name, size in sizes.items():
        if group and size > left:
            yield group
            group, left = [], num_bytes
        group.append(name)
        left -= size
    if group:
        yield group
