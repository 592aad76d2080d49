"""What every package of Roxxel shares, without a dependency.

`missing_extra` names the command that installs a library which an extra needs.
`find_google_problem` says at once why a bucket of Google cannot be used.
"""

from roxxel_store.extras import MissingExtraError, missing_extra
from roxxel_store.google import find_google_problem

__all__ = ["MissingExtraError", "find_google_problem", "missing_extra"]
