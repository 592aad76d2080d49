"""Counts how many modules hold one job, such as the client of buckets.

    python tests-integration/tools/counts.py

prints one row for each job: how many modules do it, and which; then where each concept
of the house is defined, how many modules name an option of a write, and the lines of
each package. A job with one place can be
changed there, so `tests-integration/test_house.py` holds the numbers that were reached.
The program reads the sources and imports none of them.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
TESTS = "tests-integration/**/*.py"
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, ast.Call))


@cache
def _named(call: ast.Call) -> str:
    return ast.unparse(call.func)


def imports_obstore(path: Path) -> int:
    """Return how often a module imports the client of buckets at run time."""
    return sum(
        isinstance(node, ast.Import)
        and any(each.name.split(".")[0] == "obstore" for each in node.names)
        for node in ast.walk(_tree(path))
    )


def locks(path: Path) -> int:
    """Return how often a module calls `flock`."""
    return sum(_named(call) == "fcntl.flock" for call in _calls(path))


def renames_files(path: Path) -> int:
    """Return how often a module renames a file over another.

    `Path.replace` has one argument, `str.replace` has two. `Bucket.replace` has more.
    """
    return sum(
        _named(call) == "os.replace"
        or (_named(call).endswith(".replace") and len(call.args) == 1)
        for call in _calls(path)
        if not call.keywords
    )


def reads_json(path: Path) -> int:
    """Return how often a module parses JSON."""
    return sum(_named(call) == "json.loads" for call in _calls(path))


def asks_for_urls(path: Path) -> int:
    """Return how often a module asks whether a path is a URL."""
    return sum(_named(call).endswith("is_url") for call in _calls(path))


def finds_a_home(path: Path) -> int:
    """Return how often a module replaces `~` by a home folder."""
    return sum(_named(call).endswith("expanduser") for call in _calls(path))


def ends_a_command(path: Path) -> int:
    """Return how often a module catches what ends a command: Ctrl-C, a closed pipe."""
    return sum(
        node.type is not None
        and re.search("KeyboardInterrupt|BrokenPipeError", ast.unparse(node.type))
        is not None
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ExceptHandler)
    )


def prints(path: Path) -> int:
    """Return how often a module writes to the terminal."""
    writes = re.compile(r"print|(sys\.)?std(out|err)(\.buffer)?\.write(lines)?")
    return sum(writes.fullmatch(_named(call)) is not None for call in _calls(path))


CONCEPTS = {
    "a bucket's client": "Bucket",
    "a folder of files, on a disk or in a bucket": "FilePlace",
    "compare and swap of one small object": "swap_object",
    "a file that is whole or absent": "Output",
    "a JSON record": "RecordKind",
    "what a user gave as a path": "located",
    "a step that a user names": "split_step",
    "the word that a wrong one is like": "nearest",
    "the lines of a table": "aligned",
    "a duration as text": "short_duration",
    "the end of a command": "run_command",
    "one write of a corpus": "CorpusWrite",
    "who is held out": "Side",
    "what is left out of the loss": "RowReader",
    "which checkpoints are kept": "Retention",
    "the settings of a run": "TrainConfig",
    "the files of a run, read": "RunFolder",
}
"""The one class or function for each fact of the house."""

LOWER_HOUSE = ("store", "format", "prepare", "curriculum", "loader")

JOBS: dict[str, Callable[[Path], int]] = {
    "import obstore": imports_obstore,
    "fcntl.flock": locks,
    "os.replace, Path.replace": renames_files,
    "json.loads": reads_json,
    "is_url(": asks_for_urls,
    "expanduser": finds_a_home,
    "except KeyboardInterrupt, BrokenPipeError": ends_a_command,
    "print, sys.stdout.write, sys.stderr.write": prints,
}


def places(job: str) -> dict[str, int]:
    """Return how often each module does a job; modules that never do are left out."""
    counted = {
        path.relative_to(ROOT / "packages").as_posix(): JOBS[job](path)
        for path in SOURCES
    }
    return {name: number for name, number in counted.items() if number}


def homes(name: str) -> list[str]:
    """Return the modules that define a class, a function or a type at their top."""
    return [
        path.relative_to(ROOT / "packages").as_posix()
        for path in SOURCES
        for node in _tree(path).body
        if (isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
        or (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name)
    ]


def modules_naming(option: str) -> list[str]:
    """Return the modules of roxxel-format and roxxel-prepare that name an option."""
    word = re.compile(rf"\b{option}\b")
    return [
        path.name
        for path in SOURCES
        if path.relative_to(ROOT / "packages").parts[0][7:] in {"format", "prepare"}
        and word.search(path.read_text("utf-8"))
    ]


def names_from(package: str, imported: str) -> set[tuple[str, str]]:
    """Return what a package imports from another: pairs of a module and a name."""
    return {
        (node.module, each.name)
        for path in SOURCES
        if path.relative_to(ROOT / "packages").parts[0] == package
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and node.module.partition(".")[0] == imported
        for each in node.names
    }


def methods_without_a_body(path: Path) -> list[str]:
    """Return the methods of a module that do nothing, as `Class.method`.

    The lines of `overload` are signatures of a method below them, so they do not count.
    """
    return [
        f"{of.name}.{each.name}"
        for of in ast.walk(_tree(path))
        if isinstance(of, ast.ClassDef)
        for each in of.body
        if isinstance(each, ast.FunctionDef)
        and all(map(_does_nothing, each.body))
        and "overload" not in map(ast.unparse, each.decorator_list)
    ]


def _does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, `...`, `pass`, or alike."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Delete) or (
        isinstance(statement, ast.Raise)
        and "NotImplementedError" in ast.unparse(statement)
    )


def main() -> None:
    """Print the counts of jobs, the homes of concepts, and the lines of packages."""
    for job in JOBS:
        found = places(job)
        total = sum(found.values())
        print(f"{job}: {len(found)} modules, {total} times")
        for name, number in found.items():
            print(f"    {name}: {number}")
    for concept, name in CONCEPTS.items():
        print(f"{concept}: {name} in {', '.join(homes(name))}")
    for option in ("separator", "columns", "pack", "vocab_size"):
        print(f"modules that name {option}: {len(modules_naming(option))}")
    names = sorted(f"{m}.{n}" for m, n in names_from("roxxel-prepare", "roxxel_format"))
    print(f"names that roxxel-prepare imports from roxxel-format: {len(names)}")
    print(f"    {', '.join(names)}")
    bodiless = {
        path.relative_to(ROOT / "packages").as_posix(): methods_without_a_body(path)
        for path in SOURCES
        if path.relative_to(ROOT / "packages").parts[0][7:] in LOWER_HOUSE
    }
    print(f"methods without a body: {sum(map(len, bodiless.values()))}")
    for name, methods in bodiless.items():
        if methods:
            print(f"    {name}: {', '.join(methods)}")
    lines: dict[str, int] = {}
    for path in SOURCES:
        package = path.relative_to(ROOT / "packages").parts[0]
        number = len(path.read_text("utf-8").splitlines())
        lines[package] = lines.get(package, 0) + number
    print(f"lines of source: {sum(lines.values())}")
    for package, number in lines.items():
        print(f"    {package}: {number}")
    tests = [*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob(TESTS)]
    number = sum(len(path.read_text("utf-8").splitlines()) for path in tests)
    print(f"lines of tests and benchmarks: {number}")


if __name__ == "__main__":
    sys.exit(main())
