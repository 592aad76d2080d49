"""The `roxxel-format` command."""

from roxxel_format.cli.main import main

__all__ = ["main"]
