"""`roxxel withdraw`: leaves documents out of a run from its next step on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from roxxel_store.command import as_text
from roxxel_store.screen import say

from roxxel.cli._runs import (
    add_run_arguments,
    chosen_documents,
    document_named,
    opened,
)

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Answer a request to be forgotten. The command says which steps have learned the
documents, adds them to [without] of the run's config, so that no later step does,
says what it would cost to undo what was learned, and writes a receipt for whoever
asked. Then start the run again with the same `roxxel train`.
"""

EXAMPLES = [
    "runs/first --documents web:3,17",
    "runs/first --text 'a sentence of the page' --receipt answer.json",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument(
        "--documents",
        action="append",
        default=[],
        type=document_named,
        metavar="SOURCE:N[,N...]|NAME",
        help="these documents, by number from 0, id or path; repeatable",
    )
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        type=as_text,
        help="every document that holds this text, as `roxxel where` finds it; "
        "repeatable",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the config with which the run goes on (default: the file in its folder "
        "that has RUN as its save_path)",
    )
    parser.add_argument(
        "--receipt",
        metavar="FILE",
        help="the receipt for whoever asked (default: RUN-withdrawn-DIGEST.json, in "
        "this folder)",
    )


def run(options: argparse.Namespace) -> None:
    """Print where the run learned the documents, and what changes from now on."""
    of_run = opened(options)
    corpora = of_run.corpora()
    chosen = chosen_documents(corpora, options.documents, options.text, options)
    from roxxel.replaying import withdraw

    found = withdraw(of_run, chosen, config=options.config, receipt=options.receipt)
    say(json.dumps(asdict(found)) if options.json else str(found))
