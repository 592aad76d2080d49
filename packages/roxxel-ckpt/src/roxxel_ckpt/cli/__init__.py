"""The `roxxel-ckpt` command: list, compare, verify, export and delete checkpoints.

The command uses no accelerator. `roxxel_store.command.EXIT_CODES` says what the exit
codes mean.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from roxxel_store import check_output
from roxxel_store.command import (
    FOUND,
    REFUSED,
    CommandParser,
    Found,
    interruptible,
    terminal_width,
)
from roxxel_store.screen import aligned, say, short_size

from roxxel_ckpt._integrity import find_missing
from roxxel_ckpt._place.description import (
    Description,
    Retention,
    described,
    described_whole,
    descriptions,
    digests_of,
)
from roxxel_ckpt._restore.compare import STATE_ROOT, plan_restore
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
)
from roxxel_ckpt.locations import (
    named_folder,
    named_for_deletion,
    named_step,
    named_steps,
    split_step,
)
from roxxel_ckpt.values import different_leaves, fault_of, sound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_ckpt._arrays.layout import LeafSpec
    from roxxel_ckpt._place.folder import Folder, Step

Describe = Callable[[str, int, Mapping[str, Any]], Mapping[str, str]]
Logged = Callable[[str, int], str | None]

StepName = Annotated[
    str,
    "FOLDER@STEP, or the step's own folder; or a folder of checkpoints or of a run, "
    "for its newest step",
]


@interruptible("roxxel-ckpt")
def main(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "roxxel-ckpt",
    describe: Describe | None = None,
    logged: Logged | None = None,
) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments; None for the arguments of this process.
        prog: Name of the command in usage and errors.
        describe: Function that returns further texts for an export, by name. Its
            arguments are the folder of the checkpoints, the step, and the `extra` of
            the step.
        logged: Function that returns the state digest that a run has logged when it
            saved a step; None if no log has it. Its arguments are the folder of the
            checkpoints and the step.

    Returns:
        The exit code.
    """
    if "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the accelerators stay free for training
    found = parser(prog, describe, logged)
    return found.run(
        found.acts, arguments, (CheckpointError, ImportError, OSError, ValueError)
    )


def parser(
    prog: str, describe: Describe | None = None, logged: Logged | None = None
) -> CommandParser:
    """Return the parser, which calls the function of a command.

    The arguments are those of `main`.
    """
    checking = partial(verify, logged=logged)
    exporting = partial(export, describe=describe)
    return CommandParser.of(
        [ls, diff, checking, exporting, delete],
        "roxxel-ckpt",
        prog=prog,
        description="List, compare, verify and export checkpoints, without an "
        "accelerator.",
    )


def ls(folder: Annotated[str, "FOLDER[@STEP]"] = ".", *, json_: bool = False) -> None:
    """List the steps of a folder, or the arrays of a step.

    The line of a step has the metric that ranks the steps (the recorded one, else
    eval_loss, loss_since_save or loss), then whether the step is the newest or the
    best, its size, its time, and further metrics. For FOLDER@STEP, every array is
    listed with its dtype, shape and size, after the step's metrics and versions.

    Args:
        folder: Folder of checkpoints or of a run, or one of its steps (default: this
            folder).
        json_: Print one JSON object for each step; that of FOLDER@STEP has all that was
            saved as `extra`.

    Example:
        roxxel ckpt ls runs/first
        roxxel ckpt ls runs/first@1000
    """
    is_step = split_step(folder)[1] is not None
    place = None if is_step else named_folder(folder)
    found = {} if place is None else descriptions(place, [])
    if place is None or not found:  # a step, or nothing, which is an error
        _show(named_step(folder), is_json=json_)
        return
    retention = Retention()
    best = retention.ranked(found)[:1]
    marks = {
        step: ["newest"] * (step == max(found)) + ["best"] * (step in best)
        for step in found
    }
    rows = list(_rows(place, found, marks))
    if json_:
        for row in rows:
            say(json.dumps(row))
        return
    ranking = retention.best_rule(found).metric_of(d.metrics for d in found.values())
    _print_steps(rows, ranking)


def _rows(
    folder: Folder, found: Mapping[int, Description], marks: Mapping[int, list[str]]
) -> Iterable[dict[str, Any]]:
    """Yield what `ls` shows of each step."""
    for number, step in folder.steps(found).items():
        sizes, permanent = step.sizes(), ["permanent"] * found[number].is_permanent
        problem = _problem(step, sizes)
        # Retention may drop a step while it is read.
        now = folder.steps([number]).get(number) if problem else step
        if now is None or now.state != "finished":
            continue
        yield {
            "step": number,
            "num_bytes": sum(sizes.values()),
            "saved_at": _local_time(found[number]),
            "metrics": dict(found[number].metrics),
            "marks": [*marks[number], *permanent, *problem],
        }


def _print_steps(rows: Sequence[Mapping[str, Any]], ranking: str) -> None:
    """Print a table that fits the terminal, first the metric that ranks the steps."""
    is_ranked = any(ranking in row["metrics"] for row in rows)
    table = [("step", *[ranking] * is_ranked, "marks", "size", "saved")]
    for row in rows:
        value = row["metrics"].get(ranking)
        ranked = [f"{value:.4g}" if value is not None else "-"] * is_ranked
        marks, size = ", ".join(row["marks"]), short_size(row["num_bytes"])
        table.append((str(row["step"]), *ranked, marks, size, row["saved_at"]))
    lines = aligned(table, right=range(1 + is_ranked))
    width = terminal_width()
    room = None if width is None else width - 2 - max(map(len, lines))
    others = [
        _within(
            room, [f"{k}={x:.4g}" for k, x in row["metrics"].items() if k != ranking]
        )
        for row in rows
    ]
    heads = ["other metrics" if any(others) else "", *others]
    longest = max(map(len, lines))
    for line, other in zip(lines, heads, strict=True):
        say(f"{line.ljust(longest)}  {other}".rstrip())


def _within(room: int | None, parts: Sequence[str]) -> str:
    """Return as many parts as fit, and the number of the others."""
    for shown in range(len(parts), -1, -1):
        left = len(parts) - shown
        text = " ".join([*parts[:shown], *[f"(+{left})"] * bool(left)])
        if room is None or len(text) <= room:
            return text
    return ""


def _problem(step: Step, sizes: Mapping[str, int]) -> list[str]:
    """Return a mark if a file of a step is missing or has another size."""
    try:
        is_whole = find_missing(sizes, digests_of(step, described(step))) is None
    except CheckpointDamagedError:
        is_whole = False
    except OSError:
        return ["cannot be read"]
    return [] if is_whole else ["damaged"]


def _show(found: Step, *, is_json: bool) -> None:
    """Print the metrics, the versions and the arrays of a step."""
    description, leaves = described_whole(found)
    if is_json:
        say(json.dumps(_step_json(found, description, leaves)))
        return
    say(found.location)
    for name, value in description.metrics.items():
        say(f"  {name} = {value:g}")
    if description.extra:
        names = ", ".join(map(str, description.extra))
        say(f"  extra: {names}; --json prints the values")
    versions = ", ".join(f"{name} {v}" for name, v in description.versions.items())
    say(f"  written with {versions}\n")
    table = [("leaf", "dtype", "shape", "size")]
    table += [
        (
            name,
            spec.dtype,
            "x".join(map(str, spec.shape)) or "-",
            short_size(_known(spec)),
        )
        for name, spec in leaves.items()
    ]
    say("\n".join(aligned(table)))
    for part in dict.fromkeys(name.partition("/")[0] for name in leaves):
        specs = [s for name, s in leaves.items() if name.partition("/")[0] == part]
        size = short_size(sum(_known(spec) for spec in specs))
        say(f"\n{part}: {len(specs)} leaves, {size}", end="")
    say()


def _step_json(
    step: Step, description: Description, leaves: Mapping[str, LeafSpec]
) -> dict[str, Any]:
    return {
        "step": description.step,
        "location": step.location,
        "metrics": dict(description.metrics),
        "extra": description.extra,
        "versions": dict(description.versions),
        "leaves": {
            name: {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "num_bytes": spec.num_bytes,
            }
            for name, spec in leaves.items()
        },
    }


def diff(
    a: StepName,
    b: StepName,
    *,
    values: bool = False,
) -> None:
    """Compare two steps, leaf by leaf.

    Their arrays are compared by name, shape and dtype, then their metrics, and what
    else was saved. A line begins with - for an array of A alone, + for an array of B
    alone, and ! for a difference.

    Args:
        a: The first step.
        b: The second step.
        values: Compare the values of the arrays too (default: names, shapes and
            dtypes).

    Raises:
        Found: The steps differ.

    Example:
        roxxel ckpt diff runs/first@1000 runs/second@1000 --values
    """
    steps = named_step(a), named_step(b)
    both, leaves = zip(*map(described_whole, steps), strict=True)
    report = plan_restore(both[0].step, *leaves, whole=True)
    lines = [f"- {name}: {leaves[0][name]}" for name in report.dropped]
    lines += [f"+ {name}: {leaves[1][name]}" for name in report.new]
    lines += [f"! {name}: {a} -> {b}" for name, a, b in report.mismatched]
    for part in ("step", "metrics", "extra"):
        left, right = (dict(_values(part, getattr(d, part))) for d in both)
        lines += [
            f"! {name}: {left.get(name, 'absent')} -> {right.get(name, 'absent')}"
            for name in {**left, **right}
            if left.get(name) != right.get(name)
        ]
    same = len(report.restored)
    if values:
        names = {*report.restored}
        differences, same = different_leaves(*steps)
        lines += [f"! {each}" for each in differences if each.name in names]
    for line in lines:
        say(line)
    alike, note = "equal", ""
    if not values:
        alike = "of the same shape and dtype"
        note = "; values were not compared, add --values to compare them"
    say(f"{same} leaves {alike}, {len(lines)} differences{note}")
    if lines:
        raise Found


def _values(name: str, value: Any) -> Iterable[tuple[str, str]]:
    """Yield the dotted name and the text of every value inside a JSON value."""
    if isinstance(value, dict) and value:
        inner = [
            (f"{name}.{key}", x) for key, x in cast("dict[str, Any]", value).items()
        ]
    elif isinstance(value, list) and value:
        found = cast("list[Any]", value)
        inner = [(f"{name}[{index}]", x) for index, x in enumerate(found)]
    else:
        yield name, json.dumps(value)
        return
    for inner_name, x in inner:
        yield from _values(inner_name, x)


def verify(
    paths: Sequence[Annotated[str, "PATH"]] = (".",), *, logged: Logged | None
) -> int:
    """Check every file of the steps against its digest.

    Every array is checked against the step's description too.

    Args:
        paths: A step, or a folder of checkpoints or of a run, for all its steps
            (default: this folder).
        logged: As for `main`.

    Raises:
        Found: A file is damaged.

    Example:
        roxxel ckpt verify runs/first
    """
    code = 0
    for text in paths:
        for step in named_steps(text):
            try:
                damage = _fault(step, logged)
            except OSError as error:
                say(f"{step.location}: UNKNOWN, {error}")
                code = code or REFUSED
                continue
            state = "sound" if damage is None else f"DAMAGED, {damage}"
            say(f"{step.location}: {state}")
            code = code if damage is None else FOUND
    return code


def _fault(step: Step, logged: Logged | None) -> str | None:
    folder = step.location.rpartition("/")[0]
    return fault_of(step, logged and logged(folder, step.number))


def export(
    step: StepName,
    file: Path,
    *,
    subtree: Annotated[str | None, "PATH"] = None,
    all_: bool = False,
    describe: Describe | None,
) -> None:
    """Write a step's model to one file, which other programs read.

    Args:
        step: The step.
        file: The file to write.
        subtree: The part to write of a state that save(state=) was given, such as
            params (default: the model).
        all_: Write every part, with full leaf names.
        describe: As for `main`.

    Example:
        roxxel ckpt export runs/first@1000 model.safetensors
    """
    check_output(file)
    found = named_step(step)
    with sound(found, "exported") as directory:
        from roxxel_ckpt._arrays.export import export_safetensors

        description, leaves = described_whole(found)
        names = _exported_names(found, leaves, subtree, is_all=all_)
        carried = {
            # transformers refuses a file with metadata but without format
            "format": "pt",
            "step": str(found.number),
            "metrics": json.dumps(dict(description.metrics)),
        }
        if describe is not None:
            folder, extra = found.location.rpartition("/")[0], description.extra or {}
            carried |= describe(folder, found.number, extra)
        num_bytes = export_safetensors(directory, leaves, names, file, carried)
    say(f"{file}: {len(names)} arrays, {short_size(num_bytes)}")


def _exported_names(
    step: Step, leaves: Mapping[str, LeafSpec], subtree: str | None, *, is_all: bool
) -> dict[str, str]:
    from roxxel_ckpt._arrays.export import exported_name

    if is_all:
        return {name: name for name in leaves}
    inner = "model/" if subtree is None else f"{STATE_ROOT}/{subtree.strip('/')}/"
    names = {n: exported_name(n, inner) for n in leaves if n.startswith(inner)}
    if not names:
        parts = {n.split("/")[1] for n in leaves if n.startswith(f"{STATE_ROOT}/")}
        problem = "holds no model" if subtree is None else f"has no part {subtree!r}"
        remedy = f"name one with --subtree ({', '.join(sorted(parts))}), or add --all"
        raise CheckpointNotFoundError(
            f"{step.location}: {problem}; {remedy if parts else 'leave out --subtree'}"
        )
    return names


def delete(steps: Sequence[Annotated[str, "FOLDER@STEP"]]) -> None:
    """Delete steps, so that a run goes on from the newest that is left.

    Stop the run first: a program that is still training could not save any more.

    Args:
        steps: The steps to delete.

    Example:
        roxxel ckpt delete runs/first@1000 runs/first@2000
    """
    # A misspelt name is found before any step is deleted.
    for folder, step in [*map(named_for_deletion, dict.fromkeys(steps))]:
        with folder.saving():
            folder.delete(step)
        say(f"{folder}/{step}: is deleted")


def _known(spec: LeafSpec) -> int:
    return spec.num_bytes or 0


def _local_time(description: Description) -> str:
    if not math.isfinite(description.saved_at):
        return "-"
    moment = dt.datetime.fromtimestamp(description.saved_at).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
