"""A Sphinx extension that links the names of other libraries, without a network.

`sphinx.ext.intersphinx` wants the inventory of a site. Those of JAX, NumPy and the
others hold tens of thousands of names and are fetched; ours come from `elsewhere.toml`,
which has the few that our pages use.
"""

from __future__ import annotations

import tomllib
import zlib
from pathlib import Path
from typing import Any

_HEAD = """\
# Sphinx inventory version 2
# Project: {project}
# Version:
# The remainder of this file is compressed using zlib.
"""


def inventory(project: str, pages: dict[str, str]) -> bytes:
    """Return the inventory of a project, in the format of Sphinx."""
    lines = "".join(
        f"{name} py:class 1 {page} {name}\n"
        for names, page in pages.items()
        for name in names.split()
    )
    return _HEAD.format(project=project).encode() + zlib.compress(lines.encode())


def setup(app: Any) -> dict[str, bool]:
    """Give intersphinx the inventories."""
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

    def write(_: Any, config: Any) -> None:
        folder = Path(app.doctreedir, "elsewhere")
        folder.mkdir(parents=True, exist_ok=True)
        for project, library in listed.items():
            path = folder / f"{project}.inv"
            path.write_bytes(inventory(project, library["pages"]))
            config.intersphinx_mapping[project] = (library["url"], str(path))

    app.setup_extension("sphinx.ext.intersphinx")
    app.connect("config-inited", write, priority=100)  # before intersphinx reads it
    return {"parallel_read_safe": True}
