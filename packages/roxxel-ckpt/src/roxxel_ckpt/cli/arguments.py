"""The arguments of the command `roxxel-ckpt`, and their help."""

from __future__ import annotations

from importlib import metadata

from roxxel_store.command import (
    FOUND,
    INTERRUPTED,
    INVALID,
    REFUSED,
    CommandParser,
)


def parser(prog: str) -> CommandParser:
    """Return the parser, which stores the name of the command as `command`."""
    found = CommandParser(
        prog=prog,
        description="List, show, compare, verify and export checkpoints, without an "
        "accelerator.",
        codes=[0, REFUSED, INVALID, FOUND, INTERRUPTED],
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
        help="list the steps of a folder",
        description="List the steps of a folder: the metric that ranks them, which is "
        "the newest and which the best, size, time, and further metrics. Steps that "
        "were set aside come first.",
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
        "else eval_loss, loss_mean or loss)",
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

    back = commands.add_parser(
        "bring-back",
        help="bring back a step that was set aside",
        description="Verify a step that was set aside, and move it out of the folder's "
        "`abandoned/`, so that a run continues from it. Newer steps, and another step "
        "of this number, move to `abandoned/` in exchange. A trainer that continues "
        "from the step also brings back its rows of metrics. Stop the run first: a run "
        "whose own step moves saves no more.",
    )
    back.add_argument("step", metavar="FOLDER@STEP", help="the step to bring back")

    export = commands.add_parser(
        "export",
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

    orbax = commands.add_parser(
        "import",
        help="copy the steps of an Orbax CheckpointManager",
        description="Copy every step of an Orbax CheckpointManager into a folder of "
        "checkpoints, from which `restore` reads them. A step has the items `default`, "
        "the NNX state of (model, optimizer), and `metrics`. Exit code 3 means that a "
        "step is damaged and was not copied.",
    )
    orbax.add_argument("orbax", metavar="ORBAX", help="the manager's folder")
    orbax.add_argument("folder", metavar="FOLDER", help="the new folder of checkpoints")
    return found
