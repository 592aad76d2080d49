"""`roxxel eval`: evaluates the model of a run by lm-evaluation-harness."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from roxxel_ckpt.locations import split_step
from roxxel_store.screen import aligned, say
from roxxel_store.urls import url_of
from roxxel_train import RunFolderError

from roxxel.cli._arguments import (
    AtLeast1,
    Context,
    Json,
    Model,
    RunAtStep,
    Scans,
    Sources,
    Tokenizer,
    Trust,
    check_one_end,
    codec_of_run,
    ends_of,
    model_of,
    opened,
    scans_of,
)
from roxxel.evaluate.results import FOLDER, add_evaluations
from roxxel.runs.scans import reads_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def eval(  # noqa: A001 - the name of the command
    run: RunAtStep,
    *,
    tasks: Annotated[str, "NAME[,NAME...]"],
    include: Annotated[str | None, "FOLDER"] = None,
    num_fewshot: Annotated[int | None, "N"] = None,
    limit: AtLeast1 | None = None,
    batch_size: AtLeast1 = 8,
    context: Context = None,
    scan: Scans = (),
    out: Annotated[str | None, "FILE"] = None,
    model: Model = None,
    source: Sources = (),
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Evaluate the model of a run on tasks of EleutherAI's lm-evaluation-harness.

    Tasks are such as lambada_openai or hellaswag. RUN@STEP takes the checkpoint of a
    step, RUN the newest one. The results are printed, written to RUN/evals/STEP.json,
    and shown by `roxxel report`. If the run averages its weights, the average is
    evaluated. For each receipt of `roxxel scan`, a line says whether the steps before
    the checkpoint have read what the scan has found.

    Args:
        tasks: Tasks, groups or tags of the harness, or patterns such as 'arc_*'.
        include: Folder with YAML files of tasks of your own.
        num_fewshot: Examples before each question (default: as the task says).
        limit: Only the first N questions of each task, for a try.
        batch_size: Texts at a time.
        out: Write the results here (default: RUN/evals/STEP.json).

    Example:
        roxxel eval runs/first --tasks lambada_openai,hellaswag
    """
    from roxxel.evaluate.harness import HarnessModel, evaluate

    name, step = split_step(run)
    if out is None and url_of(name) is not None:
        raise RunFolderError(
            f"{name}: results are not written into a bucket; "
            "pass --out FILE with a file on a disk"
        )
    of_run = opened(name, source, trust=trust)
    corpora = of_run.corpora()
    codec = codec_of_run(of_run, tokenizer)
    # Of this step, whatever the run saves while the weights are read.
    step = of_run.files.saved_step if step is None else step
    made = model_of(of_run, step, model)
    assert step is not None  # noqa: S101 - a run without a checkpoint is refused
    ends = ends_of(corpora, made, codec)
    if not codec.before:
        why = "a text is scored from this token on: it must be one"
        check_one_end(of_run, ends, why)
    context = context or _context(made, name)
    reads = reads_of(
        of_run.sampler(), corpora, scans_of(of_run.config, scan), until=step
    )

    try:
        found = evaluate(
            HarnessModel(
                made,
                codec,
                end=ends,
                context=context,
                batch_size=batch_size,
            ),
            tasks.split(","),
            num_fewshot=num_fewshot,
            limit=limit,
            include=include,
        )
    except (ValueError, OSError) as error:
        raise RunFolderError(f"{name}: {error}") from error
    file = out or Path(of_run.path) / FOLDER / f"{step}.json"
    versions = {each: metadata.version(each) for each in ("roxxel", "lm-eval")}
    add_evaluations(Path(file), step, versions, found)
    if json_:
        scans = [each.to_dict() for each in reads]
        say(json.dumps({"step": step, "tasks": found, "scans": scans}))
        return
    say(f"step {step:,}, {file}")
    for line in [*_table(found), *map(str, reads)]:
        say(line)


def _context(model: Any, run: str) -> int:
    context = getattr(getattr(model, "config", None), "context", None)
    if not isinstance(context, int):
        raise RunFolderError(
            f"{run}: its model does not say how many tokens it takes; pass --context N"
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
    # The first row is for heads, of which this table has none.
    return aligned([("", "", "", ""), *rows], right=[2])[1:]
