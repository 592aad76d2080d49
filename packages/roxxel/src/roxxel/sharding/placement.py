"""The public names of `roxxel_loader.sharding.placement`."""

# ruff: noqa: F403, PLC0414 - `roxxel_loader.sharding.placement` lists the names
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_loader.sharding.placement import *
from roxxel_loader.sharding.placement import __all__ as __all__
