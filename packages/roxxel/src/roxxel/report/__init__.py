"""Writes the HTML page of `roxxel report` about one run.

The report reads the run's folder, without JAX. Only the plan needs the corpora: if a
corpus is unreadable, the page omits the plan. The page contains its charts and numbers,
and needs no network.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from roxxel.report._facts import RunFacts, read_facts
from roxxel.report._page import page
from roxxel.run_files import RunFolderError, local_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RunFacts", "page", "read_facts", "write_report"]


def write_report(run: Path | str, out: Path) -> RunFacts:
    """Write the page of a run.

    Args:
        run: Folder of the run, or its URL. Commands on the page name it like this.
        out: File of the page; its folder must exist.

    Returns:
        The facts that the page shows.

    Raises:
        RunFolderError: The folder `run` holds no run, `out` is a folder, or the folder
            of `out` does not exist.
        OSError: The folder cannot be read, or the page cannot be written.
    """
    facts = read_facts(local_folder(run), str(run))
    if out.is_dir():
        raise RunFolderError(f"{out}: is a folder; give a file to --out")
    if not out.parent.is_dir():
        raise RunFolderError(
            f"{out}: its folder does not exist; make it, or give another --out"
        )
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(page(facts))
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return facts
