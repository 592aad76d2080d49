"""Turn files of text or tokens into a corpus, on one machine or on a thousand.

`write_files` divides the inputs into units. Processes, tasks of Ray or members of a job
array write the units, and all give the same bytes. `scan_corpus` finds the text of
evaluation sets in a corpus, also in units. `roxxel_prepare.ray` ends a pipeline of Ray
Data in a corpus. The command is `roxxel-prepare`.
"""

from roxxel_prepare._run.files import (
    PartSummary,
    Progress,
    commit_files,
    write_files,
)
from roxxel_prepare._scan.scan import scan_corpus
from roxxel_prepare._version import __version__

__all__ = [
    "PartSummary",
    "Progress",
    "__version__",
    "commit_files",
    "scan_corpus",
    "write_files",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that hold them."""
    return __all__
