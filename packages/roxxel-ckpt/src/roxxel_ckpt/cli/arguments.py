"""The arguments of the command `roxxel-ckpt`, and their help."""

from __future__ import annotations

from importlib import metadata

from roxxel_store.command import (
    FOUND,
    CommandParser,
)


def parser(prog: str) -> CommandParser:
    """Return the parser, which stores the name of the command as `command`."""
    found = CommandParser(
        prog=prog,
        description="List, show, compare, verify and export checkpoints, without an "
        "accelerator.",
        codes=[FOUND],
    )
    version = f"roxxel-ckpt {metadata.version('roxxel-ckpt')}"
    found.add_argument("--version", action="version", version=version)
    commands = found.add_commands()
    step_help = (
        "a step: FOLDER@STEP, or the step's own folder; or a folder of checkpoints or "
        "of a run, for its newest step"
    )

    ls = commands.add_parser(
        "ls",
        examples=["runs/first"],
        help="list the steps of a folder",
        description="List the steps of a folder: the metric that ranks them, which is "
        "the newest and which the best, size, time, and further metrics.",
    )
    ls.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default=".",
        help="folder of checkpoints or of a run (default: this folder)",
    )
    ls.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric that ranks the steps (default: the recorded metric, "
        "else eval_loss, loss_since_save or loss)",
    )
    ls.add_argument(
        "--mode",
        choices=["min", "max"],
        help="whether lower or higher is better (default: as recorded, else min)",
    )
    ls.add_argument(
        "--json", action="store_true", help="print one JSON object per step"
    )

    show = commands.add_parser(
        "show",
        examples=["runs/first@1000"],
        help="show the contents of a step",
        description="Show the contents of a step: metrics, versions, and every array "
        "with dtype, shape and size.",
    )
    show.add_argument("step", metavar="STEP", help=step_help)
    show.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object, with all that was saved as `extra`",
    )

    diff = commands.add_parser(
        "diff",
        examples=["runs/first@1000 runs/second@1000 --values"],
        codes=[FOUND],
        help="compare two steps, leaf by leaf",
        description="Compare two steps: their arrays by name, shape and dtype, their "
        "metrics, and what else was saved. A line begins with - for an array of A "
        "alone, + for an array of B alone, and ! for a difference. Exit code 3 means "
        "that the steps differ.",
    )
    diff.add_argument("a", metavar="A", help=step_help)
    diff.add_argument("b", metavar="B", help=step_help)
    diff.add_argument(
        "--values",
        action="store_true",
        help="compare the values of the arrays too (default: names, shapes and dtypes)",
    )
    diff.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a value that must differ, such as extra.run; repeatable",
    )

    verify = commands.add_parser(
        "verify",
        examples=["runs/first"],
        codes=[FOUND],
        help="check every file against its digest",
        description="Check every file of the steps against its digest, and every "
        "array against the description. Exit code 3 means damage.",
    )
    verify.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        default=["."],
        help="a step, or a folder of checkpoints or of a run, for all its steps "
        "(default: this folder)",
    )

    export = commands.add_parser(
        "export",
        examples=["runs/first@1000 --safetensors model.safetensors"],
        help="write a step's model to one file",
        description="Write the arrays of a step's model to one file, which other "
        "programs read.",
    )
    export.add_argument("step", metavar="STEP", help=step_help)
    export.add_argument(
        "--safetensors", metavar="FILE", required=True, help="the file to write"
    )
    export.add_argument(
        "--part",
        metavar="PATH",
        help="the part to write of a state that save(state=) was given, such as params "
        "(default: the model)",
    )
    export.add_argument(
        "--all", action="store_true", help="write every part, with full leaf names"
    )

    delete = commands.add_parser(
        "delete",
        examples=["runs/first@1000 runs/first@2000"],
        help="delete steps",
        description="Delete steps, so that a run goes on from the newest that is left. "
        "Stop the run first: a run that has begun before saves no more.",
    )
    delete.add_argument(
        "steps", metavar="FOLDER@STEP", nargs="+", help="the steps to delete"
    )
    return found
