"""The formats of input files: endings, first bytes, and files that are not data.

This is the only table of formats. A file's name and first bytes must agree on its
format, on a disk and in a bucket. A file whose format is not certain is refused, and
the error says what would make it certain: otherwise markup, or the bytes of token ids,
would silently become text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from roxxel_store import roxxel_command
from roxxel_store.files import check_no_pointer

from roxxel_prepare._inputs.input_file import InputError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

HEAD_BYTES = 4096
"""Number of first bytes that decide about a file."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which is not part of the text."""

COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
"""The endings of compressed files, after that of the format: `.jsonl.gz`."""

_SOURCE_CODE = """
    .adb .ads .agda .asm .bash .bib .c .cc .cjs .clj .cmake .coffee .cpp .cs .css .cu
    .cuh .cxx .d .dart .el .erl .ex .exs .f .f03 .f90 .f95 .fish .for .fs .fsx .go
    .gradle .groovy .h .hh .hpp .hrl .hs .hxx .idr .inl .ino .java .jl .js .jsx .kt .kts
    .lean .less .lisp .lua .m .mjs .ml .mli .mm .nim .nix .pas .php .pl .pm .proto .ps1
    .py .pyi .pyx .r .rb .rkt .rs .s .scala .scm .scss .sh .sol .sql .sv .swift .tcl
    .tex .thy .ts .tsx .v .vb .vhd .vhdl .vim .zig .zsh
"""
_SOURCE_ENDINGS = tuple(_SOURCE_CODE.split())


@dataclass(frozen=True, slots=True)
class Format:
    """A format of input files.

    Attributes:
        what: What a file of this format is, for messages.
        kind: What a document is: a whole text or a line, fields of a row, or tokens.
            Files of one kind need the same options, and may be mixed.
        endings: What the names of such files end with, such as `.jsonl`.
        is_text: Whether the file is text, whose first bytes must agree. Readers of
            other formats check the bytes themselves.
    """

    what: str
    kind: Literal["text", "rows", "tokens"]
    endings: tuple[str, ...]
    is_text: bool = False


FORMATS = {
    "text": Format(
        "text",
        "text",
        (".txt", ".text", ".md", ".markdown", ".rst", ".adoc", *_SOURCE_ENDINGS),
        is_text=True,
    ),
    "lines": Format("lines of text", "text", (), is_text=True),
    "jsonl": Format(
        "JSON lines", "rows", (".jsonl", ".jsonlines", ".ndjson"), is_text=True
    ),
    "json": Format("JSON", "rows", (".json",), is_text=True),
    "csv": Format("CSV", "rows", (".csv",), is_text=True),
    "tsv": Format("TSV", "rows", (".tsv",), is_text=True),
    "npy": Format("a .npy array", "tokens", (".npy",)),
    "parquet": Format("Parquet", "rows", (".parquet", ".pq")),
    "arrow": Format("Arrow", "rows", (".arrow", ".feather", ".ipc")),
    "ds": Format("tokens of datatrove", "tokens", (".ds",)),
}
"""The formats by the names that `--format` takes."""

_BY_ENDING = {ending: name for name, form in FORMATS.items() for ending in form.endings}


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What the first bytes of a file show.

    Attributes:
        what: What such a file is, for messages.
        pattern: Matches the first bytes.
        ending: The ending of such files; empty if they cannot be an input.
        forms: The formats whose files may begin so.
    """

    what: str
    pattern: re.Pattern[bytes]
    ending: str = ""
    forms: tuple[str, ...] = ()


_JSON = "jsonl", "json"
_BEGINNINGS = (
    _Beginning("a gzip file", re.compile(rb"\x1f\x8b"), ".gz"),
    _Beginning("a Zstandard file", re.compile(rb"\x28\xb5\x2f\xfd"), ".zst"),
    _Beginning("an xz file", re.compile(rb"\xfd7zXZ\0"), ".xz"),
    _Beginning("a bzip2 file", re.compile(rb"BZh"), ".bz2"),
    _Beginning("a Parquet file", re.compile(rb"PAR1"), ".parquet"),
    _Beginning("an Arrow file", re.compile(rb"ARROW1\0\0"), ".arrow"),
    _Beginning("a .npy file", re.compile(rb"\x93NUMPY"), ".npy"),
    _Beginning("a PDF document", re.compile(rb"%PDF-")),
    _Beginning("a binary file", re.compile(rb"[^\0]*\0")),
    _Beginning(
        "HTML or XML",
        re.compile(rb"\s*<(!doctype\s+html|html[\s>]|\?xml\s)", re.IGNORECASE),
    ),
    # An object, or a list of objects or texts, as far as a few bytes show it.
    _Beginning(
        "JSON lines",
        re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.){0,256}"\s*:'),
        ".jsonl",
        _JSON,
    ),
    _Beginning(
        "a JSON array",
        re.compile(rb'\s*\[\s*(\{\s*"|"(?:[^"\\\n]|\\.)*"\s*,)'),
        ".json",
        _JSON,
    ),
    _Beginning(
        "a list of ids",
        re.compile(rb"\s*\[\s*[0-9]+(\s*,\s*[0-9]+){7}"),
        ".jsonl",
        _JSON,
    ),
)
"""First bytes of files that are not plain text; the first match counts."""

_WIDE_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_ARRAY_OF_ROWS = re.compile(rb"\s*\[\s*(\{|\n|\Z)")
_OBJECT_OF_LINES = re.compile(rb"\s*\{[ \t\r]*\n")

_NO_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog)"
    r"([-._][^.]*)?(\.(md|txt|rst|html|cff|pdf|bib))?"
    r"|dataset_infos?\.json|dataset_dict\.json|state\.json|index\.json"
    r"|(md5|sha1|sha256|sha512)sums?(\.txt)?|thumbs\.db|desktop\.ini"
    r"|.*\.(crc|md5|sha1|sha256|sha512|lock|metadata)"
    r"|.*_\$folder\$"  # The marker of a folder, by Hadoop and EMR.
)
_NO_DATA_FOLDERS = {
    *("__macosx", "__pycache__", "@eadir"),
    *("_temporary", "_delta_log", "_change_data", "_spark_metadata"),
}


def is_compressed(path: str) -> bool:
    """Return whether the name of a file says that it is compressed."""
    return path.lower().endswith(COMPRESSED)


def ending_of(path: str) -> str:
    """Return the ending of a file's name in lower case, without that of compression."""
    name = path.rpartition(".")[0] if is_compressed(path) else path
    return PurePosixPath(name).suffix.lower()


def format_of(path: str, form: str | None = None) -> str:
    """Return the format of a file: the given one, or else the one that its name says.

    Raises:
        InputError: The name does not say the format; the message says what to do.
    """
    found = form or _BY_ENDING.get(ending_of(path))
    if found is None:
        raise InputError(f"{path}: {_way_out(path)}")
    return found


def _way_out(path: str) -> str:
    names = ", ".join(FORMATS)
    if path == "-":
        return (
            "the standard input has no name that says its format; pass --format, one "
            f"of {names}"
        )
    ending, found = ending_of(path), _beginning(path)
    if ending == ".rox":
        several = path.rpartition("/")[0] + "/*.rox" if "/" in path else "*.rox"
        return (
            "is a shard of a corpus already; to divide a corpus, run roxxel write with "
            f"--split, and quote its pattern, such as '{several}'; else read the shard "
            "with roxxel_format.Roxxel, or with "
            "roxxel_prepare.first_roxxel"
        )
    what = f"names that end with {ending} have" if ending else "a name like this has"
    begins = f", and it begins like {found.what}" if found else ""
    endings = " ".join(
        ending
        for name, form in FORMATS.items()
        for ending in form.endings[: 1 if name == "text" else None]
    )
    if found and found.ending in COMPRESSED and not is_compressed(path):
        endings += f", and {found.ending} behind it"
    return (
        f"{what} no known format{begins}; pass --format (one of {names}), rename it to "
        f"an ending such as {endings}, or convert it (tokens of other programs: with "
        f"`{roxxel_command('format copy')}`)"
    )


def _beginning(path: str) -> _Beginning | None:
    """Return what the first bytes of a file on a disk show, as a hint."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    check_no_pointer(path, head, InputError)
    return _described(head)


def _described(head: bytes) -> _Beginning | None:
    return next((each for each in _BEGINNINGS if each.pattern.match(head)), None)


def _check_head(path: str, name: str, head: bytes) -> None:
    """Raise InputError if the first bytes are those of another format than `name`."""
    found = _described(head)
    if found is None or name in found.forms:
        return
    if found.what == "HTML or XML" and ending_of(path) == ".php":
        return  # A program in PHP may begin with the markup that it prints.
    way = f"rename it to end with {found.ending}" if found.ending else "leave it out"
    raise InputError(
        f"{path}: is {FORMATS[name].what} by its name, but begins like {found.what} at "
        f"byte 0; {way}, or pass --format {name} if it is right"
    )


def format_of_head(path: str, name: str, head: bytes, *, is_given: bool) -> str:
    """Return how to read a file of text, after a look at its first bytes.

    Args:
        path: The file, for messages.
        name: The format that its name implies, or that is given.
        head: Its first `HEAD_BYTES` bytes, after decompression.
        is_given: Whether the user named the format, which then decides alone.

    Returns:
        `name`; but for JSON that is not an array, `jsonl`.

    Raises:
        InputError: The bytes are not what the name says.
    """
    check_no_pointer(path, head, InputError)
    for mark, encoding in _WIDE_MARKS.items():
        if head.startswith(mark):
            raise InputError(
                f"{path}: is {encoding}, as its byte order mark says at byte 0; "
                f"convert it first, such as by `iconv -f {encoding} -t UTF-8`"
            )
    head = head.removeprefix(BYTE_ORDER_MARK)
    if not is_given:
        _check_head(path, name, head)
    if name == "jsonl" and _ARRAY_OF_ROWS.match(head):
        raise InputError(
            f"{path}: is JSON lines, but begins like one JSON array at byte 0; rename "
            "it to .json, or pass --format json"
        )
    if name in ("json", "jsonl") and _OBJECT_OF_LINES.match(head):
        raise InputError(
            f"{path}:1: is one JSON object over several lines, and no row of a corpus; "
            "make each row one line, such as by `jq -c .`, or leave the file out"
        )
    if name == "json" and not head.lstrip().startswith(b"["):
        return "jsonl"
    return name


def text_of(where: str, data: bytes) -> str:
    """Return bytes as a text; raise InputError for bytes that are not UTF-8."""
    if b"\0" in data:
        raise InputError(
            f"{where}: holds a NUL at byte {data.index(0)}, so it is binary, or text "
            "in another encoding; convert it to UTF-8 first, or leave it out"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from error


def not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    """Return the error for bytes that are not UTF-8."""
    return InputError(
        f"{where}: not UTF-8 text ({error.reason} at byte {error.start}); convert it "
        "first"
    )


def is_no_data(relative: str) -> bool:
    """Return whether a file in a folder is no data, by its path in the folder.

    Such files are hidden, describe the data beside them, or are marks of the program
    that wrote it: `README.md`, `_SUCCESS`, `part_$folder$`. The same rule holds on a
    disk and in a bucket. A name that begins with `_` may be source code, such as
    `__init__.py`.
    """
    *folders, name = relative.split("/")
    if any(each[:1] == "." for each in (*folders, name)):
        return True
    if any(each.lower() in _NO_DATA_FOLDERS for each in folders):
        return True
    if _NO_DATA.fullmatch(name.lower()):
        return True
    return name[:1] == "_" and _BY_ENDING.get(ending_of(name)) != "text"


def check_kinds(
    paths: Iterable[str], form: str | None, named: Container[str]
) -> str | None:
    """Check that files may be inputs of one write.

    A file that was `named` itself is data. Of the files in folders, one kind is data.

    Returns:
        A line that lists the formats if there are several; None if there is one.

    Raises:
        InputError: A file's format is not known, or the files are of different kinds.
    """
    if form is not None:
        return None
    paths = [*paths]
    unknown = [path for path in paths if ending_of(path) not in _BY_ENDING]
    if unknown:
        others = f" ({_counted(unknown)} of {len(paths)} inputs are not known)"
        raise InputError(
            f"{unknown[0]}: {_way_out(unknown[0])}{others if len(paths) > 1 else ''}"
        )
    names = {format_of(path) for path in paths}
    if len(names) < 2:
        return None
    searched = [path for path in paths if path not in named]
    if len({FORMATS[format_of(path)].kind for path in searched}) > 1:
        raise InputError(
            f"the inputs are of different kinds ({_counted(searched)}), and nothing "
            "says which of them are data; pass the files of one kind, such as "
            '"data/*.jsonl", or name each file'
        )
    return f"the inputs are of several formats: {_counted(paths)}"


def _counted(paths: Iterable[str]) -> str:
    """Count files by their endings, the most frequent first."""
    counts: dict[str, int] = {}
    for path in paths:
        ending = ending_of(path) or "without an ending"
        counts[ending] = counts.get(ending, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count} {ending}" for ending, count in ordered)
