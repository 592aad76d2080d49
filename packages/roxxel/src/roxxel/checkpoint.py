"""The public names of `roxxel_ckpt`, for `from roxxel.checkpoint import ...`."""

# ruff: noqa: F403, PLC0414 - the package `roxxel_ckpt` lists the names
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_ckpt import *
from roxxel_ckpt import __all__ as __all__
