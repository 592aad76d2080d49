"""`roxxel report`: writes one self-contained page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roxxel.cli._words import say
from roxxel.report import write_report

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Write one HTML page about a run: loss, throughput, waiting time and tokens of
each source over the steps, checkpoints and warnings. The page needs no network.
The run may still be training, or may have crashed. The command changes nothing
in the folder of the run except the page.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="folder of a run, or its URL: the save_path"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=(
            "file of the page (default: report.html in the folder of the run, or here "
            "for a URL)"
        ),
    )


def run(options: argparse.Namespace) -> None:
    """Write the page and print its path."""
    is_url = "://" in options.run
    run = options.run if is_url else Path(options.run)
    out: Path = options.out or Path("" if is_url else run) / "report.html"
    report = write_report(run, out)
    say(f"{run}: {report.headline}")
    say(f"wrote {out}; open it in a browser")
