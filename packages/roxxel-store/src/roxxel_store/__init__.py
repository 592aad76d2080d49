"""What every package of Roxxel shares, without a dependency.

`missing_extra` names the command that installs a library which an extra needs.
"""

from roxxel_store.extras import MissingExtraError, missing_extra

__all__ = ["MissingExtraError", "missing_extra"]
