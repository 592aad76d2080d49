"""The public names of `roxxel_loader.sharding.presets`."""

# ruff: noqa: F403, PLC0414 - `roxxel_loader.sharding.presets` lists the names
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_loader.sharding.presets import *
from roxxel_loader.sharding.presets import __all__ as __all__
