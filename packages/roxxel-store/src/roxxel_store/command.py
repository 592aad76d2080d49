"""What all commands have in common: help, streams, exit codes, one sentence per error.

Every command's help ends with examples and its exit codes, positional arguments are in
capitals, and a mistyped command is answered with the one that was probably meant.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import itertools
import os
import re
import select
import shutil
import sys
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

from roxxel_store.arguments import nearest
from roxxel_store.screen import draw, note, printable, say, shown
from roxxel_store.signature import add_arguments, as_phrase, function_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

_Arguments = ParamSpec("_Arguments")

EXPECTED = (
    OSError,
    ValueError,
    TypeError,
    IndexError,
    ImportError,
    RuntimeError,
    MemoryError,
)
"""Errors that the commands on corpora tell their user in a sentence. Any other error is
a bug, and keeps its traceback.
"""

# An argument `exist=` in a message, but not that of `write_column`: the command has no
# option for columns.
_PYTHON_ARGUMENT = re.compile(r'(?<!\.\.\., )\bexist="(\w+)"')
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

REFUSED = 1
INVALID = 2
FOUND = 3
STOPPED = 75
INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    REFUSED: "refused, with the reason in one sentence",
    INVALID: "the command line is invalid",
    FOUND: "a check found damage or a difference",
    STOPPED: (
        "a signal stopped the run after a save; the same command continues the run"
    ),
    INTERRUPTED: "interrupted, with nothing to save",
}
"""What each exit code means, in every command that has the code."""

_OF_ALL = {0, REFUSED, INVALID, INTERRUPTED}
"""Exit codes that every command has."""


_CODE_OF = {"Found": FOUND, "Preempted": STOPPED}
"""Exit codes by the errors that a docstring names in its section `Raises`."""


class UsageError(Exception):
    """Arguments of a command that do not go together; `CommandParser` says so.

    Example:
        >>> str(UsageError("argument --all: not allowed with argument --part"))
        'argument --all: not allowed with argument --part'
    """


def check_one(given: Mapping[str, object], *, is_required: bool = False) -> None:
    """Check that at most one of several options is given, or exactly one.

    Args:
        given: The value of each option, None without one.
        is_required: Whether one must be given.

    Raises:
        UsageError: Two are given, or none of the required ones.

    Example:
        >>> check_one({"--steps": None, "--sample": 3})
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        first, second, *_ = names
        raise UsageError(f"argument {second}: not allowed with argument {first}")
    if is_required and not names:
        raise UsageError(f"one of the arguments {' '.join(given)} is required")


def check_none(options: Iterable[str], what: str) -> None:
    """Check that no options are given.

    Args:
        options: The options that are given, such as those of `signature.given`.
        what: What they do not go with, such as another option.

    Raises:
        UsageError: There is one.

    Example:
        >>> check_none([], "--commit")
    """
    for option in options:
        raise UsageError(f"argument {option}: not allowed with {what}")


class Found(SystemExit):
    """Ends a command whose check found damage or a difference.

    It says so in a sentence, unless the command's output has said it.

    Example:
        >>> Found("run: 2 rows differ; verify the corpus").code
        3
    """

    def __init__(self, sentence: str = "") -> None:
        super().__init__(sentence)
        self.code = FOUND


class Ended(SystemExit):
    """Ends a command that has already said why.

    Example:
        >>> Ended(75).code
        75
    """

    def __init__(self, code: int) -> None:
        super().__init__("")
        self.code = code


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples and exit codes.

    It takes whole names of options only.

    Args:
        examples: Arguments of the command, as the user types them after its name.
        codes: Exit codes from `EXIT_CODES`, besides those of every command.
        epilog: Text after the examples.
        settings: Further arguments of `argparse.ArgumentParser`.

    Attributes:
        examples: The examples, each with the command's name before it.
        acts: What each command of `of` does with its options.

    Example:
        >>> parser = CommandParser(prog="tool", examples=["a.rox"], codes=[3])
        >>> print(parser.epilog)
        example:
          tool a.rox
        <BLANKLINE>
        exit codes:
          0    done
          1    refused, with the reason in one sentence
          2    the command line is invalid
          3    a check found damage or a difference
          130  interrupted, with nothing to save
        <BLANKLINE>
    """

    def __init__(
        self,
        *,
        examples: Sequence[str] = (),
        codes: Iterable[int] = (),
        epilog: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **settings)
        self.examples = [f"{self.prog} {each}".strip() for each in examples]
        self.acts: dict[str, Callable[[argparse.Namespace], int | None]] = {}
        typed = "".join(f"  {each}\n" for each in self.examples)
        title = "examples" if len(self.examples) > 1 else "example"
        shown = f"{title}:\n{typed}\n" if typed else ""
        codes = sorted(_OF_ALL.union(codes))
        lines = (f"  {code:<3}  {EXIT_CODES[code]}\n" for code in codes)
        self.epilog = f"{shown}{epilog}exit codes:\n{''.join(lines)}"

    @classmethod
    def of(
        cls,
        acts: Iterable[Callable[..., int | None]],
        distribution: str,
        **settings: Any,
    ) -> Self:
        """Return the parser of a program; each function is a command of its name.

        Args:
            acts: The functions, for `run`.
            distribution: Name of the package, whose version `--version` prints.
            settings: Arguments of `CommandParser`.
        """
        told = {act: cls.settings_of(act) for act in acts}
        codes = {code for each in told.values() for code in each["codes"]}
        program = cls(codes=codes, **settings)
        version = f"{distribution} {metadata.version(distribution)}"
        program.add_argument("--version", action="version", version=version)
        commands = program.add_commands()
        for act, each in told.items():
            name = function_of(act).__name__
            said = as_phrase(each["description"].partition("\n")[0])
            parser = commands.add_parser(name, help=said, **each)
            program.acts[name] = parser.calling(act)
        return program

    @classmethod
    def settings_of(cls, act: Callable[..., int | None]) -> dict[str, Any]:
        """Return description, examples and exit codes, from a function's docstring."""
        doc = told(act)
        text = doc.text
        if "Found" in doc.entries:
            text += f" Exit code {FOUND} means that {as_phrase(doc.entries['Found'])}."
        codes = [code for name, code in _CODE_OF.items() if name in doc.entries]
        return {"description": text, "examples": doc.examples, "codes": codes}

    def calling(
        self, act: Callable[..., int | None]
    ) -> Callable[[argparse.Namespace], int | None]:
        """Add the arguments of a function; return what calls it with parsed ones."""
        build = add_arguments(self, act)

        def call(options: argparse.Namespace) -> int | None:
            try:
                return build(options)
            except UsageError as error:
                self.error(str(error))

        return call

    def add_commands(self) -> Any:
        """Return the action to which `add_parser` adds a command."""
        return self.add_subparsers(
            dest="command",
            required=True,
            title="commands (each has its own --help)",
            metavar="COMMAND",
            parser_class=CommandParser,
        )

    def parse_command(
        self, names: Iterable[str], arguments: Sequence[str] | None
    ) -> argparse.Namespace:
        """Parse a command line whose first word is a command.

        Args:
            names: All commands.
            arguments: Words after the program's name; None for `sys.argv[1:]`.
        """
        words = list(sys.argv[1:] if arguments is None else arguments)
        if not words:
            self.print_help(sys.stderr)
            self.exit(INVALID)
        if not words[0].startswith("-"):
            self.check_command(words[0], names)
        return self.parse_args(words)

    def run(
        self,
        commands: Mapping[str, Callable[[argparse.Namespace], int | None]],
        arguments: Sequence[str] | None,
        expected: tuple[type[Exception], ...],
    ) -> int:
        """Parse a command line, run its command, and return the exit code.

        Args:
            commands: What each command does with its options.
            arguments: Words after the program's name; None for `sys.argv[1:]`.
            expected: Classes of the errors that are meant for users.
        """
        prepare_streams()
        options = self.parse_command(commands, arguments)
        return run_command(
            self.prog,
            lambda: commands[options.command](options),
            lambda error: isinstance(error, expected),
        )

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - the base has overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Exit if an option does not exist; the message suggests the nearest one."""
        words = list(sys.argv[1:] if args is None else args)
        # The words after a command are for the parser of this command.
        if self._subparsers is None:
            self._check_options(words)
        found, rest = super().parse_known_args(words, namespace)
        if self._subparsers is None:
            rest = self._later_words(found, rest)
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Exit with a message. The usage stands above if it has one line."""
        usage = self.format_usage()
        if usage.count("\n") > 1:
            usage = f"usage: {self.prog} [-h] ... (--help lists the options)\n"
        self.exit(INVALID, f"{usage}{self.prog}: error: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or an error. Both may quote what a stranger wrote."""
        super()._print_message(shown(message), file)

    def _later_words(
        self, found: argparse.Namespace, words: Sequence[str]
    ) -> Sequence[str]:
        """Give the words that argparse left over to the last argument, as in `a -x b`.

        argparse ends an argument of any number of words at the first option, if another
        argument stands before it. Returns the words that are an error.
        """
        last = self._get_positional_actions()[-1:]
        before_end = itertools.takewhile(lambda word: word != "--", words)
        has_option = any(re.match("-.", word) for word in before_end)
        if has_option or not last or last[0].nargs != "*":
            return words
        [action] = last
        given = getattr(found, action.dest)
        more = [self._get_value(action, word) for word in words if word != "--"]
        if more:
            begun = [] if given is action.default else given
            setattr(found, action.dest, [*begun, *more])
        return []

    def _check_options(self, words: Iterable[str]) -> None:
        known = self._option_string_actions
        for word in itertools.takewhile(lambda word: word != "--", words):
            name, _, _ = word.partition("=")
            if name.startswith("--") and " " not in name and name not in known:
                hint = nearest(name, known)
                self.error(f"no option {name}{'; ' * bool(hint)}{hint}")

    def check_command(self, word: str, names: Iterable[str]) -> None:
        """Exit if a command does not exist; the message suggests the nearest one."""
        known = list(names)
        if word in known:
            return
        hint = nearest(word, known)
        self.error(
            f"no command {word!r}; {hint}{' ' * bool(hint)}`{self.prog} --help` lists "
            "the commands"
        )


class _Help(argparse.HelpFormatter):
    """Wraps a paragraph, unless one of its lines is indented."""

    def _format_action(self, action: argparse.Action) -> str:
        commands = getattr(action, "_get_subactions", list)()
        # Without the line that argparse gives to the choice of a command.
        return "".join(map(super()._format_action, [*commands] or [action]))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (
            part
            if "\n " in part
            else super(_Help, self)._fill_text(part, width, indent)
            for part in text.rstrip("\n").split("\n\n")
        )
        return "\n\n".join(parts) + "\n"


class Progress:
    """Shows how far some work is, if standard error is a terminal.

    Use it as a context: the line appears at once, and is erased at the end. Call it
    with two numbers: the finished work, and all work.

    Example:
        >>> with Progress("reading web.rox") as progress:
        ...     progress(1, 2)
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._show(f"{self._what} ...")
        return self

    def __call__(self, num_done: int, total: int) -> None:
        """Show the share of the work that is done."""
        self._show(f"{self._what}: {num_done / max(1, total):.0%}")

    def __exit__(self, *_: object) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        if self._is_shown:
            width = shutil.get_terminal_size().columns - 1
            draw(f"\r{printable(text)[:width]}\x1b[K")


def terminal_width() -> int | None:
    """Return the width of the terminal; None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def sentence_of(error: Exception) -> str:
    """Return the text of an error; `path: reason` for an error of the system.

    The argument `exist=` of Python becomes an option.

    Example:
        >>> sentence_of(OSError(28, "No space left on device", "a.rox"))
        'a.rox: No space left on device'
        >>> sentence_of(ValueError('a.rox: exists already; use exist="replace"'))
        'a.rox: exists already; use --exist replace'
    """
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename
        text = error.strerror
        if error.errno == errno.ENOENT:
            text = f"{text.lower()}; check the path"
        return text if path is None else f"{path}: {text}"
    if isinstance(error, MemoryError) and not str(error):
        return "needs more memory than this process can get; use fewer workers"
    return _PYTHON_ARGUMENT.sub(r"--exist \1", str(error))


def as_text(given: str) -> str:
    """Parse the value of an option that is text, and not the name of a file.

    Example:
        >>> as_text("größe")
        'größe'
    """
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(
            f"{given!a} has letters that the locale of this shell does not know; set "
            "one that knows all, as by LC_ALL=C.UTF-8"
        ) from error
    return given


def positive(text: str) -> int:
    """Parse the value of an option that is an integer of at least 1.

    Example:
        >>> positive("8")
        8
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def size(text: str, least: int = 1) -> int:
    """Parse the value of an option that is a number of bytes, of at least `least`.

    Example:
        >>> size("4096"), size("64K")
        (4096, 65536)
    """
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if number.isdecimal() and unit in _UNITS and int(number) >= least:
        return int(number) * _UNITS[unit]
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a size; write bytes, such as 4096, 64K, 1M, 2G or 1T"
    )


def interruptible(
    prog: str,
) -> Callable[[Callable[_Arguments, int]], Callable[_Arguments, int]]:
    """Return a decorator that ends a program with one line at Ctrl-C.

    It watches the whole `main`, because the imports take a command's first second.

    Args:
        prog: Name of the program, which begins the line; the argument `prog` of the
            decorated function replaces it.

    Example:
        >>> @interruptible("roxxel-format")
        ... def main() -> int:
        ...     return 0
        >>> main()
        0
    """

    def decorate(main: Callable[_Arguments, int]) -> Callable[_Arguments, int]:
        @functools.wraps(main)
        def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except KeyboardInterrupt:
                return _say(str(kwargs.get("prog", prog)), "interrupted", INTERRUPTED)

        return run

    return decorate


def run_command(
    prog: str,
    act: Callable[[], int | None],
    is_expected: Callable[[Exception], bool],
    sentence: Callable[[Exception], str] = sentence_of,
) -> int:
    """Run a command, and print an expected error as one sentence.

    Call `prepare_streams` first. If the reader of the standard output has closed it, as
    `head` does, nobody misses the rest, and the command has succeeded.

    Args:
        prog: Name of the command, which begins a sentence.
        act: The command; returns its exit code, None for 0.
        is_expected: Returns whether an error is meant for users. Any other error is a
            bug and propagates with its traceback.
        sentence: Returns the text of an error.

    Returns:
        The exit code. An error that derives from SystemExit brings its own code.

    Example:
        >>> run_command("roxxel-format", lambda: None, lambda error: True)
        0
    """
    try:
        code = act() or 0
        sys.stdout.flush()
    except SystemExit as stop:
        if type(stop) is SystemExit:
            raise
        # A signal ended a run: `Preempted` of the trainer is a subclass.
        code = stop.code if isinstance(stop.code, int) else REFUSED
        return _say(prog, str(stop), code)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            drop_output()  # or Python's flush at exit fails with the same error
            return 0
        if not is_expected(error):
            raise
        return _say(prog, sentence(error), REFUSED)
    return code


def prepare_streams() -> None:
    """Make both streams usable; call this function first in a command.

    A warning, such as that of a library, is printed as one line from now on. A daemon
    may start a program without standard output (`>&-`): the text then goes nowhere, and
    no file that the program opens takes the place of the stream. A character that a
    stream cannot encode is printed as its escape.
    """
    warnings.showwarning = show_warning
    # `open` returns the lowest free descriptor, so each stream takes its own, in order.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - as below
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the program ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, in place of `warnings.showwarning`.

    Python's own form names a file of a library and shows a line of its source.

    Example:
        >>> show_warning(UserWarning("the file is old"), UserWarning, "a.py", 7)
    """
    # A terminal that is closed cannot be told.
    with contextlib.suppress(OSError):
        note(f"warning: {' '.join(str(message).split())}")


def drop_output() -> None:
    """Discard whatever is still written to standard output, after an error of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_unread() -> bool:
    """Return whether the standard output is a pipe without a reader."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):  # not a descriptor
        return False


def _say(prog: str, sentence: str, code: int) -> int:
    """Print how a command ended, flush both streams, and return its exit code."""
    line = f"{prog}: {sentence}\n" if sentence else ""
    for stream, text, write in ((sys.stderr, line, note), (sys.stdout, "", say)):
        try:
            write(text, end="")
        except OSError:
            # The terminal is closed. Discard what Python flushes at exit, which would
            # change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code
