"""`roxxel report`: writes one self-contained page about a run, or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from roxxel_store.command import Progress
from roxxel_store.screen import say
from roxxel_store.urls import located

from roxxel.cli._arguments import RunName
from roxxel.report import write_comparison, write_report


def report(
    runs: Sequence[Annotated[RunName, "RUN"]],
    *,
    out: Annotated[Path | None, "FILE"] = None,
) -> None:
    """Write one HTML page about a run: losses, rates and warnings.

    It shows loss, throughput, waiting time and tokens of each source over steps, tokens
    or time, spikes of the loss, checkpoints and warnings. For several runs, the page
    compares them: their losses, and how their configs differ. The page needs no
    network; its charts need JavaScript. A run may still be training, or may have
    crashed. The command changes nothing in a run's folder except the page.

    Args:
        out: HTML file of the page (default: report.html in the folder of the run, or
            here for a URL and for several runs).

    Example:
        roxxel report runs/first
        roxxel report runs/first runs/second --out both.html
    """
    places = list(map(located, runs))
    [first, *others] = places
    folder = first if isinstance(first, Path) and not others else Path()
    page = out or folder / "report.html"
    with Progress(f"reading {' '.join(runs)}"):
        reports = (
            write_comparison(places, page) if others else [write_report(first, page)]
        )
    for each, report in zip(places, reports, strict=True):
        say(f"{each}: {report.headline}")
    say(f"wrote {page}; open it in a browser")
