"""`roxxel eval`: evaluates the model of a run by lm-evaluation-harness."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_ckpt.locations import split_step
from roxxel_store.screen import say
from roxxel_store.urls import url_of
from roxxel_train import RunFolderError

from roxxel.cli._runs import (
    add_context_argument,
    add_run_arguments,
    add_trust_argument,
    codec_of_run,
    ends_of,
    model_of,
    one_end,
    opened,
)
from roxxel.cli._scans import add_scan_argument, scans_of
from roxxel.cli._words import at_least_1
from roxxel.evaluate.results import FOLDER, add_evaluations
from roxxel.runs.scans import reads_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from roxxel.runs.run import Run

DESCRIPTION = """\
Evaluate the model of a run on tasks of EleutherAI's lm-evaluation-harness, such
as lambada_openai or hellaswag. RUN@STEP takes the checkpoint of a step, RUN the
newest one. The results are printed, written to RUN/evals/STEP.json, and shown by
`roxxel report`. If the run averages its weights, the average is evaluated. For each
receipt of `roxxel scan`, a line says whether the steps before the checkpoint have
read what the scan has found.
"""

EXAMPLES = ["runs/first --tasks lambada_openai,hellaswag"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, has_step=True)
    add_trust_argument(parser)
    parser.add_argument(
        "--tasks",
        required=True,
        metavar="NAME[,NAME...]",
        help="tasks, groups or tags of the harness, or patterns such as 'arc_*'",
    )
    parser.add_argument(
        "--include",
        metavar="FOLDER",
        help="folder with YAML files of tasks of your own",
    )
    parser.add_argument(
        "--num-fewshot",
        type=int,
        metavar="N",
        help="examples before each question (default: as the task says)",
    )
    parser.add_argument(
        "--limit",
        type=at_least_1,
        metavar="N",
        help="only the first N questions of each task, for a try",
    )
    parser.add_argument(
        "--batch-size",
        type=at_least_1,
        default=8,
        metavar="N",
        help="texts at a time (default: %(default)s)",
    )
    add_context_argument(parser)
    add_scan_argument(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the results here (default: RUN/evals/STEP.json)",
    )


def run(options: argparse.Namespace) -> None:
    """Evaluate, write the results and print them."""
    from roxxel.evaluate.harness import HarnessModel, evaluate

    options.run, step = split_step(options.run)
    if options.out is None and url_of(options.run) is not None:
        raise RunFolderError(
            f"{options.run}: results are not written into a bucket; "
            "pass --out FILE with a file on a disk"
        )
    of_run = opened(options)
    corpora = of_run.corpora()
    codec = codec_of_run(corpora, options)
    if step is None:
        step = _newest(of_run)
    model = model_of(of_run, step, options)
    ends = ends_of(corpora, model, codec)
    if not codec.before:
        why = "a text is scored from this token on: it must be one"
        one_end(ends, why, options)
    context = options.context or _context(model, options)
    reads = reads_of(
        of_run.sampler(), corpora, scans_of(of_run.config, options), until=step
    )

    try:
        tasks = evaluate(
            HarnessModel(
                model,
                codec,
                end=ends,
                context=context,
                batch_size=options.batch_size,
            ),
            options.tasks.split(","),
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            include=options.include,
        )
    except (ValueError, OSError) as error:
        raise RunFolderError(f"{options.run}: {error}") from error
    out = options.out or Path(of_run.path) / FOLDER / f"{step}.json"
    versions = {name: metadata.version(name) for name in ("roxxel", "lm-eval")}
    add_evaluations(Path(out), step, versions, tasks)
    if options.json:
        scans = [each.to_dict() for each in reads]
        say(json.dumps({"step": step, "tasks": tasks, "scans": scans}))
        return
    say(f"step {step:,}, {out}")
    for line in [*_table(tasks), *map(str, reads)]:
        say(line)


def _newest(of_run: Run) -> int:
    checkpoints = of_run.checkpoints
    if not checkpoints:
        raise RunFolderError(
            f"{of_run.path}: holds no checkpoint; train the run until it saves"
        )
    return checkpoints[-1].step


def _context(model: Any, options: argparse.Namespace) -> int:
    context = getattr(getattr(model, "config", None), "context", None)
    if not isinstance(context, int):
        raise RunFolderError(
            f"{options.run}: its model does not say how many tokens it takes; "
            "pass --context N"
        )
    return context


def _table(tasks: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            task,
            name,
            f"{number['value']:.4f}",
            "" if number["stderr"] is None else f"± {number['stderr']:.4f}",
        )
        for task, result in tasks.items()
        for name, number in result["metrics"].items()
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return [
        f"{task:{widths[0]}}  {name:{widths[1]}}  {value:>{widths[2]}} {error}".rstrip()
        for task, name, value, error in rows
    ]
