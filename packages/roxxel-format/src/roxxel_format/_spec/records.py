"""The record of a preparation that is not committed: its plan.

It is sealed like the manifest; docs/format.md, section 10.5, names its file.
"""

from __future__ import annotations

from roxxel_store import roxxel_command
from roxxel_store.records import RecordKind

from roxxel_format.errors import ManifestError


class DamagedRecordError(ManifestError):
    """A record does not match its checksum."""


PLAN = RecordKind(
    "plan",
    version=1,
    remedy=(
        "delete this file and run the same command again, which keeps the finished "
        "units"
    ),
    error=DamagedRecordError,
    other_remedy=(
        "finish the preparation with the release that began it, or give it up with "
        f"`{roxxel_command('format clean --abandon')}`"
    ),
    other_error=ManifestError,
    mark="roxxel plan",
)
