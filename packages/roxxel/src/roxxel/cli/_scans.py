"""The receipts of scans that `plan` and `eval` compare with a run's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from roxxel_format.scans import Scan
from roxxel_store.screen import note

if TYPE_CHECKING:
    from roxxel.config import RunConfig


Scans = Sequence[
    Annotated[
        str,
        "RECEIPT",
        "also say which steps read what this receipt of `roxxel scan` lists; "
        "repeatable (default: the receipts under [without])",
    ]
]


def scans_of(config: RunConfig | None, receipts: Sequence[str]) -> list[Scan]:
    """Return the receipts that a config withdraws, and those of the arguments.

    A run may have been copied without its receipts. Then a line says so.
    """
    found = [Scan.read(path) for path in receipts]
    if config is not None:
        try:
            declared = config.schedule.relative_to(config.folder).scans
        except FileNotFoundError as error:
            note(
                f"{error.filename}: is gone, so nothing is said of this scan; pass its "
                "receipt as --scan"
            )
            declared = {}
        found += [scan for scans in declared.values() for scan in scans]
    keys = [(scan.corpus, scan.evals.digest, scan.ngram) for scan in found]
    return [*dict(zip(keys, found, strict=True)).values()]
