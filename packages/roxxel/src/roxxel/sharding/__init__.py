"""The names of `roxxel_loader.sharding`, for `from roxxel.sharding import ...`."""

# ruff: noqa: F403 - `roxxel_loader.sharding` lists the names
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_loader.sharding import *
from roxxel_loader.sharding import __all__ as __all__
