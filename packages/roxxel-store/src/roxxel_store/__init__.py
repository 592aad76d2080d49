"""What every package of Roxxel shares, without a dependency.

`missing_extra` names the extra that installs a missing library, and `roxxel_command`
spells a command of Roxxel as the user types it. `published` writes a file that is
complete or absent, and `check_output` refuses a path that is no file.

Buckets are in modules of their own: `client` (objects), `swap` (compare and swap).
"""

from roxxel_store.errors import BucketError
from roxxel_store.extras import (
    MissingExtraError,
    missing_extra,
    modules_of,
    roxxel_command,
)
from roxxel_store.files import check_output, published

__all__ = [
    "BucketError",
    "MissingExtraError",
    "check_output",
    "missing_extra",
    "modules_of",
    "published",
    "roxxel_command",
]
