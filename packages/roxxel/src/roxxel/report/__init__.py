"""Writes the HTML page of `roxxel report` about one run, or about several together.

The report reads the folders of runs, without JAX. Only the plan needs the corpora: if a
corpus is unreadable, the page omits the plan. The page is one file and loads nothing
from the network: it contains its numbers, and the part of Plotly that draws lines (1.2
MB, a file of this package).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store import published
from roxxel_train import RunFolder, RunFolderError

from roxxel.config import config_values, used_config
from roxxel.report._comparison import comparison
from roxxel.report._facts import RunFacts, read_facts
from roxxel.report._page import page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "RunFacts",
    "comparison",
    "page",
    "read_facts",
    "write_comparison",
    "write_report",
]

MAX_RUNS = 8
"""Maximum number of runs on a page, because each has its own colour."""


_SUFFIXES = {".html", ".htm", ""}


def write_report(run: Path | str, out: Path) -> RunFacts:
    """Write the page of a run.

    Args:
        run: Folder of the run, or its URL. Commands on the page name the run as it is
            given here.
        out: File of the page; its folder must exist.

    Returns:
        The facts that the page shows.

    Raises:
        RunFolderError: The folder `run` holds no run, `out` is a folder or has the
            suffix of another type of file, or the folder of `out` does not exist.
        OSError: The folder cannot be read, or the page cannot be written.
    """
    facts = read_facts(run)
    _write(out, page(facts))
    return facts


def write_comparison(runs: Sequence[Path | str], out: Path) -> list[RunFacts]:
    """Write a page that draws several runs together.

    Args:
        runs: Folders of the runs, or their URLs; at most `MAX_RUNS`.
        out: File of the page; its folder must exist.

    Returns:
        The facts of each run.

    Raises:
        RunFolderError: A folder holds no run, there are too many, `out` is a folder or
            has the suffix of another type of file, or its folder does not exist.
        OSError: A folder cannot be read, or the page cannot be written.
    """
    if len(runs) > MAX_RUNS:
        raise RunFolderError(
            f"a page draws at most {MAX_RUNS} runs together, got {len(runs)}; give "
            "fewer runs"
        )
    folders = [RunFolder(run) for run in runs]
    facts = [read_facts(folder) for folder in folders]
    configs = [_values(folder) for folder in folders]
    _write(out, comparison(facts, configs))
    return facts


def _values(run: RunFolder) -> dict[str, str] | None:
    """Return the values that a run used last; None without a readable config."""
    try:
        config = used_config(run)
    except ValueError:
        return None
    return None if config is None else config_values(config)


def _write(out: Path, content: str) -> None:
    if out.suffix.lower() not in _SUFFIXES:
        raise RunFolderError(
            f"{out}: the report is an HTML page; give --out a name that ends in .html"
        )
    with published(out) as file:
        file.write(content.encode())
