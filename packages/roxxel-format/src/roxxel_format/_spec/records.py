"""The records of a preparation: its plan, and what each finished unit has written.

Both are sealed as the manifest is; docs/format.md, section 10.5, names their files.
"""

from __future__ import annotations

from roxxel_store.records import RecordKind

from roxxel_format.errors import ManifestError


class DamagedRecordError(ManifestError):
    """A record does not match its checksum."""


def _kind(name: str) -> RecordKind:
    return RecordKind(
        name,
        version=1,
        remedy=(
            "delete this file and run the same command again, which keeps the finished "
            "units"
        ),
        error=DamagedRecordError,
        other_remedy=(
            "finish the preparation with the release that began it, or give it up with "
            "`roxxel-format clean --abandon`"
        ),
        other_error=ManifestError,
        mark=f"roxxel {name}",
    )


PLAN = _kind("plan")
UNIT = _kind("unit")
