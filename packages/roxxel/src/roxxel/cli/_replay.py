"""`roxxel replay`: trains a run again without some of its documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from roxxel_format import Roxxel
from roxxel_store.command import FOUND, STOPPED, as_text
from roxxel_store.screen import note, say
from roxxel_train import RunFolderError

from roxxel.cli._launch import (
    add_launch_arguments,
    connect,
    ended_once,
    from_first,
    run_several,
    starts_several,
)
from roxxel.cli._receipts import add_check_argument, check_alone, say_checked
from roxxel.cli._runs import (
    add_run_arguments,
    add_trust_argument,
    chosen_documents,
    document_named,
    named_source,
    opened,
)
from roxxel.cli._sample import add_sampling_arguments, continued
from roxxel.cli._words import tell
from roxxel.runs.run import open_run

if TYPE_CHECKING:
    import argparse

    from roxxel.runs.run import Run

DESCRIPTION = """\
See what some documents did to a model. The command goes back to the newest
checkpoint before the run learned them, and trains the rest of the run twice with
the same programs: once as it was (the control), and once without them. On a CPU the
second branch equals, bit for bit, a run that never learned them. Both branches are
ordinary runs, in the folder of --out. The same command continues after a kill.
"""

EXAMPLES = [
    "runs/first --without web:3,17",
    "runs/first --without-text 'def quicksort' --each",
    "--check runs/first-replay/replay.json",
]

CODES = [FOUND, STOPPED]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, needs_run=False)
    add_trust_argument(parser)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        type=document_named,
        metavar="SOURCE:N[,N...]|NAME",
        help="leave out these documents, by number from 0, id or path; repeatable",
    )
    parser.add_argument(
        "--without-text",
        type=as_text,
        action="append",
        default=[],
        metavar="TEXT",
        help="leave out every document that holds this text; repeatable",
    )
    parser.add_argument(
        "--without-source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="leave out all documents of a source; repeatable",
    )
    parser.add_argument(
        "--each",
        action="store_true",
        help="train one branch without each document, and list them by their effect",
    )
    parser.add_argument(
        "--from",
        type=int,
        dest="step",
        metavar="STEP",
        help=(
            "begin with the checkpoint of this step, or at 0 with none (default: the "
            "newest checkpoint before the first step that learns the documents)"
        ),
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder of the branches (default: RUN-replay, beside RUN)",
    )
    add_check_argument(
        parser, "repeat the replay of this replay.json in a scratch folder, or in --out"
    )
    parser.add_argument(
        "--prompt",
        type=as_text,
        metavar="TEXT",
        help="let control and branches continue this text",
    )
    add_sampling_arguments(parser)
    add_launch_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Print the effect of the documents, or whether a receipt is confirmed."""
    check_alone(
        options,
        {
            "--without": options.without,
            "--without-text": options.without_text,
            "--without-source": options.without_source,
            "--each": options.each,
            "--from": options.step is not None,
            "--prompt": options.prompt is not None,
        },
    )
    if starts_several(options):
        run_several(options)
        return
    connect(options)
    with ended_once():
        if options.check is None:
            _replay(options)
        else:
            _check(options)


def _replay(options: argparse.Namespace) -> None:
    from roxxel.replaying import replay

    sources = dict(options.source)
    of_run = opened(options)
    result = replay(
        of_run,
        _chosen(of_run, options),
        step=options.step,
        out=options.out,
        each=options.each,
        sources=sources,
        trust=options.trust,
        say=from_first(note if options.json else tell),
    )
    branches = [result.control, *result.branches]
    samples: dict[str, str] = {}
    if options.prompt is not None:
        for branch in branches:
            of_branch = open_run(branch.folder, sources, trust=True)
            samples[branch.name], _ = continued(of_branch, None, options)
    if options.json:
        say(json.dumps({**result.to_dict(), "samples": samples}))
        return
    tell("")
    say(str(result))
    for name, text in samples.items():
        say(f"\n{name}: {text}")


def _check(options: argparse.Namespace) -> None:
    from roxxel.replaying import check_replay

    found = check_replay(
        options.check,
        options.run,
        out=options.out,
        sources=dict(options.source),
        trust=options.trust,
        say=from_first(tell),
    )
    say_checked(options, found)


def _chosen(of_run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Return the documents that the arguments name, by source."""
    corpora = of_run.corpora()
    found = chosen_documents(corpora, options.without, options.without_text, options)
    for source in options.without_source:
        corpus = named_source(source, corpora, options)
        if isinstance(corpus, Roxxel):
            found.setdefault(source, []).append([0, corpus.num_documents])
        else:
            found.setdefault(source, []).append([0, len(corpus.documents)])
    if not found:
        raise RunFolderError(
            "nothing is left out; give --without, --without-text or --without-source"
        )
    return found
