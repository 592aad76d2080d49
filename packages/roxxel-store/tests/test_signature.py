from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - read at run time, as below
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from roxxel_store.command import CommandParser, Found, UsageError, positive
from roxxel_store.signature import given


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of several commands.

    Attributes:
        workers: Number of workers.
        names: A name; repeatable.
    """

    workers: Annotated[int, positive, "N"] = 4
    names: Sequence[str] = ()


def look(
    source: Annotated[str, "a file or 100 % of a folder"],
    targets: Sequence[str] = ("here",),
    *,
    size: Annotated[int | str | None, positive, "BYTES"] = None,
    mode: Literal["min", "max"] = "min",
    from_: bool = False,
    lengths: Annotated[bool, "-l"] = True,
    shared: Shared,
    given: str,
) -> int:
    """Look at a source.

    It must exist.

    Args:
        source: The source.
        targets: Where to look (default: here).
        size: Size of a part.
        mode: Which end counts.
        from_: Begin there.
        lengths: Leave out lengths.
        shared: How it works.
        given: Of the program.

    Raises:
        Found: Something is missing.

    Example:
        tool look a.rox --size 7
    """
    if size == 9:
        raise UsageError("argument --size: 9 is too many")
    seen.append((source, targets, size, mode, from_, lengths, shared, given))
    if source == "none":
        raise Found
    return 0


seen: list[Any] = []


def run(*words: str) -> int:
    parser = CommandParser.of(
        [partial(look, given="yes")], "roxxel-store", prog="tool", description="A tool."
    )
    return parser.run(parser.acts, ["look", *words], (ValueError,))


def test_a_function_gets_what_its_signature_says() -> None:
    seen.clear()

    assert run("a") == 0
    assert (
        run(
            *("a", "b", "c", "--size=7", "--mode=max", "--from", "-l"),
            *("--workers=2", "--names=x", "--names=y"),
        )
        == 0
    )

    assert seen == [
        ("a", ["here"], None, "min", False, True, Shared(names=[]), "yes"),
        (
            *("a", ["b", "c"], 7, "max", True, False),
            *(Shared(workers=2, names=["x", "y"]), "yes"),
        ),
    ]


def test_a_docstring_is_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        run("--help")

    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "Look at a source. It must exist. Exit code 3 means that something is missing.",
        "SOURCE the source: a file or 100 % of a folder",
        "TARGETS where to look (default: here)",
        "--size BYTES size of a part --mode {min,max} which end counts (default: min)",
        "-l, --no-lengths leave out lengths",
        "how it works: --workers N number of workers (default: 4)",
        "example: tool look a.rox --size 7 exit codes: 0 done",
        "3 a check found",
    ):
        assert part in shown
    assert "given" not in shown
    assert "75" not in shown


def test_the_list_of_commands_has_the_first_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = CommandParser.of(
        [look], "roxxel-store", prog="tool", description="A tool."
    )
    parser.print_help()

    shown = " ".join(capsys.readouterr().out.split())
    assert "--help): look look at a source exit codes:" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: SOURCE"),
        (["a", "--size=9"], "argument --size: 9 is too many"),
        (["a", "--size=x"], "argument --size: 'x' is not a positive integer"),
        (["a", "--workers=0"], "argument --workers: '0' is not a positive integer"),
        (["a", "--mode=m"], "argument --mode: invalid choice: 'm'"),
        (["a", "--szie=7"], "no option --szie; did you mean '--size'?"),
    ],
)
def test_wrong_words_are_an_error_of_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*words)

    assert ended.value.code == 2
    assert f"tool look: error: {said}" in capsys.readouterr().err


def test_found_needs_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("none") == 3
    assert capsys.readouterr() == ("", "")


@dataclass(frozen=True, kw_only=True)
class Work:
    """How the work is done.

    Attributes:
        unit_bytes: Size of a unit.
        workers: Number of workers.
        names: Names of units.
    """

    unit_bytes: int = 64
    workers: int | None = None
    names: Sequence[str] = ()


def test_options_that_are_given_are_those_with_another_value() -> None:
    assert given(Work(), Work(workers=None, unit_bytes=64)) == []
    assert given(Work(unit_bytes=8), Work(names=["a"])) == ["--unit-bytes", "--names"]


def put(target: str, sources: Sequence[str] = (), *, size: int = 1) -> int:
    """Put sources into a target.

    Args:
        target: The target.
        sources: The sources.
        size: Their size.

    Example:
        tool put a.rox b.txt
    """
    seen.append((target, [*sources], size))
    return 0


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        (["a"], []),
        (["a", "b", "--size=7", "c", "d"], ["b", "c", "d"]),
        (["a", "--size=7", "b", "-"], ["b", "-"]),
        (["--size=7", "a", "--", "-b", "--size"], ["-b", "--size"]),
        (["a", "--size=7", "--", "-b", "c"], ["-b", "c"]),
    ],
)
def test_options_may_stand_between_arguments(
    words: list[str], sources: list[str]
) -> None:
    seen.clear()
    parser = CommandParser.of([put], "roxxel-store", prog="tool", description="A.")

    assert parser.run(parser.acts, ["put", *words], (ValueError,)) == 0

    assert seen == [("a", sources, 7 if "--size=7" in words else 1)]


def test_an_unknown_short_option_is_no_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = CommandParser.of([put], "roxxel-store", prog="tool", description="A.")

    with pytest.raises(SystemExit):
        parser.run(parser.acts, ["put", "a", "--size=7", "-x", "b"], (ValueError,))

    assert "unrecognized arguments: -x" in capsys.readouterr().err
