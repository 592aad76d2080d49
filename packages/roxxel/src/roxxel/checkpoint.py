"""The public names of `roxxel_ckpt`, for `from roxxel.checkpoint import ...`."""

# ruff: noqa: F403, PLC0414 - every name is written once, in that package
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from roxxel_ckpt import *
from roxxel_ckpt import __all__ as __all__
