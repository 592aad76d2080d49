"""`roxxel report`: writes one self-contained page about a run, or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.command import Progress
from roxxel_store.screen import say
from roxxel_store.urls import located

from roxxel.report import write_comparison, write_report

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Write one HTML page about a run: loss, throughput, waiting time and tokens of
each source over steps, tokens or time, spikes of the loss, checkpoints and
warnings. For several runs, write one page that compares them: their losses, and
how their configs differ. The page needs no network; its charts need JavaScript.
A run may still be training, or may have crashed. The command changes nothing in
a run's folder except the page.
"""

EXAMPLES = ["runs/first", "runs/first runs/second --out both.html"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run, or its URL: the save_path",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=(
            "HTML file of the page (default: report.html in the folder of the run, or "
            "here for a URL and for several runs)"
        ),
    )


def run(options: argparse.Namespace) -> None:
    """Write the page and print its path."""
    runs = list(map(located, options.runs))
    [first, *others] = runs
    folder = first if isinstance(first, Path) and not others else Path()
    out: Path = options.out or folder / "report.html"
    with Progress(f"reading {' '.join(options.runs)}"):
        reports = write_comparison(runs, out) if others else [write_report(first, out)]
    for each, report in zip(runs, reports, strict=True):
        say(f"{each}: {report.headline}")
    say(f"wrote {out}; open it in a browser")
