"""A run as one page: what `roxxel report` writes.

Everything is read from the run's folder, without JAX and without the corpora; the page
holds its pictures and its numbers itself and needs no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel.report._facts import RunFacts, read_facts
from roxxel.report._page import page

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RunFacts", "page", "read_facts", "write_report"]


def write_report(run: Path, out: Path) -> RunFacts:
    """Write the page of a run.

    Args:
        run: Folder of the run.
        out: The page; its folder must exist.

    Returns:
        What the page says.

    Raises:
        RunFolderError: The folder holds no run.
        OSError: It cannot be read, or the page cannot be written.
    """
    facts = read_facts(run)
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text(page(facts), encoding="utf-8")
    temporary.replace(out)
    return facts
