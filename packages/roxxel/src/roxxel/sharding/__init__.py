"""The names of `roxxel_loader.sharding`, for `from roxxel.sharding import ...`."""

# ruff: noqa: F403 - every name is written once, in that package
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_loader.sharding import *
from roxxel_loader.sharding import __all__ as __all__
