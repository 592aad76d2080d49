"""The formats of input files: their endings, their first bytes, and what is no data.

This is the only table of formats. The format of a file is what its name and its first
bytes agree on, on a disk and in a bucket. A file that is not known for certain is
refused with what would make it certain: markup, or the bytes of token ids, would
otherwise become text without a word.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from roxxel_format.writing import is_shard_head
from roxxel_store.files import check_no_pointer

from roxxel_prepare._inputs.input_file import InputError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

HEAD_BYTES = 4096
"""Number of first bytes that decide about a file."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which is no part of a text."""

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
        kind: What a document is: a whole text or a line; fields of a row; or tokens.
            Files of one kind need the same options, and may be mixed.
        endings: The endings of the names.
        is_text: Whether the file is text. The others begin with their own magic, which
            their readers check.
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

_TO_ROWS = "convert it to Parquet or JSON lines"
_TO_NPY = "load it, and save each array by numpy.save as a .npy file"
_ITERATE = (
    "iterate over its samples with the library that wrote it, and pass them to "
    "roxxel_format.Roxxel.write"
)
_IN_PLACE = (
    "read them in place with FlatTokens or MegatronTokens of roxxel_format.foreign, or "
    "copy them by Roxxel.write(tokens.documents) (a .bin of litData: iterate over "
    "litdata.StreamingDataset)"
)
_SHARD = (
    "quote the corpus's pattern, so that the shell does not expand it, or read the "
    "shard with roxxel_format.Roxxel (one of the first Roxxel: with "
    "roxxel_prepare.first_roxxel)"
)
_KEEP_AS_TEXT = "pass --format text if each file is a document"
_WAYS = {
    (".bin", ".idx", ".tok", ".u16", ".u32"): (
        "holds ready-made tokens, if nanoGPT, llm.c or Megatron wrote it",
        _IN_PLACE,
    ),
    (".rox",): (
        "is a shard of a corpus already",
        _SHARD,
    ),
    (".mds",): ("is a shard of MosaicML's streaming", _ITERATE),
    (".tfrecord", ".tfrecords", ".array_record", ".arrayrecord", ".riegeli"): (
        "is a file of records",
        _ITERATE,
    ),
    (".npz", ".pt", ".pth", ".safetensors", ".h5", ".hdf5", ".pkl", ".pickle"): (
        "holds arrays in a container",
        _TO_NPY,
    ),
    (".html", ".htm", ".xhtml", ".xml", ".svg", ".sgml"): (
        "holds markup, which is not text",
        "extract the text first, or pass --format text to keep the markup",
    ),
    (".pdf", ".epub", ".docx", ".doc", ".odt", ".rtf", ".pptx", ".ipynb"): (
        "is a document of another program",
        "extract its text first",
    ),
    (".warc", ".wet", ".wat", ".arc"): (
        "is an archive of web pages",
        "extract their texts first, into JSON lines",
    ),
    (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar"): (
        "is an archive",
        "unpack it, and pass the files in it",
    ),
    (".lz4", ".sz", ".snappy", ".br", ".lzma", ".z", ".lzo"): (
        f"is compressed in another way than {', '.join(COMPRESSED)}",
        "decompress it",
    ),
    (".orc", ".avro", ".sqlite", ".sqlite3", ".db", ".duckdb", ".xlsx", ".xls"): (
        "is a table of another program",
        _TO_ROWS,
    ),
    (".yaml", ".yml", ".toml", ".ini", ".cfg", ".log", ".srt", ".vtt", ".org"): (
        "is perhaps no data",
        _KEEP_AS_TEXT,
    ),
}
"""Endings of files that are not read: what such a file is, and what to do with it."""

_WAY_OF = {ending: way for endings, way in _WAYS.items() for ending in endings}

_MAGICS = {
    b"\x1f\x8b": ("a gzip file", ".gz"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", ".zst"),
    b"\xfd7zXZ\0": ("an xz file", ".xz"),
    b"BZh": ("a bzip2 file", ".bz2"),
    b"PK\x03\x04": ("a zip archive", ".zip"),
    b"PAR1": ("a Parquet file", ".parquet"),
    b"ARROW1\0\0": ("an Arrow file", ".arrow"),
    b"\x93NUMPY": ("a .npy file", ".npy"),
    b"SQLite format 3\0": ("an SQLite database", ".sqlite"),
    b"%PDF-": ("a PDF document", ".pdf"),
    b"\x89HDF\r\n": ("an HDF5 file", ".h5"),
    b"\x89PNG\r\n": ("a picture", ""),
    b"\xff\xd8\xff": ("a picture", ""),
    b"\x7fELF": ("a program", ""),
    b"Obj\x01": ("an Avro file", ".avro"),
    b"MMIDIDX\0": ("an index of Megatron", ".idx"),
}
"""The first bytes of binary files: what they show, and the ending of such files."""

_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The first bytes of a frame that a reader of Zstandard skips."""

_WIDE_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_MARKUP = re.compile(rb"\s*<(!doctype\s+html|html[\s>]|\?xml\s)", re.IGNORECASE)
# An object, or a list of objects or texts, as far as a few bytes show it.
_JSON_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.){0,256}"\s*:')
_JSON_ARRAY = re.compile(rb'\s*\[\s*(\{\s*"|"(?:[^"\\\n]|\\.)*"\s*,)')
_IDS = re.compile(rb"\s*\[\s*[0-9]+(\s*,\s*[0-9]+){7}")
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
    """Return the format of a file: the one that is given, or that of its name.

    Raises:
        InputError: The name does not say the format; the message names the way out.
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
    if ending in _WAY_OF:
        return "; ".join(_WAY_OF[ending])
    begins = f", and it begins like {found}" if found else ""
    what = f"names that end with {ending} have" if ending else "a name like this has"
    content = _ENDING_OF.get(found, "") if found else ""
    if content in COMPRESSED and not is_compressed(path):
        return (
            f"{what} no known format{begins}; rename it to an ending such as "
            f".jsonl{content}"
        )
    if found and content in _WAY_OF and found not in _TEXTS:
        return f"{what} no known format{begins}; {_way_of_content(path, 'text', found)}"
    rows = " ".join(
        ending
        for name, form in FORMATS.items()
        for ending in form.endings
        if name != "text"
    )
    return (
        f"{what} no known format{begins}; pass --format (one of {names}), or rename it "
        f"to an ending such as {rows}, or .txt .md and those of source code"
    )


def _beginning(path: str) -> str | None:
    """Return what the first bytes of a file on a disk show, as a hint."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    check_no_pointer(path, head, InputError)
    return _described(head)


def _described(head: bytes) -> str | None:
    """Return what the first bytes of a file show, or None for any other text."""
    for magic, (what, _) in _MAGICS.items():
        if head.startswith(magic):
            return what
    if is_shard_head(head):
        return "a shard of Roxxel"
    if b"\0" in head:
        return "a binary file"
    texts = zip(_TEXTS, (_MARKUP, _JSON_OBJECT, _JSON_ARRAY, _IDS), strict=True)
    return next((what for what, begins in texts if begins.match(head)), None)


_TEXTS = ("HTML or XML", "JSON lines", "a JSON array", "a list of ids")
_ENDING_OF = dict(_MAGICS.values()) | dict(
    zip(_TEXTS, (".html", ".jsonl", ".json", ".jsonl"), strict=True)
)
"""The usual ending of each kind of file; empty for a kind that is no input."""
_ALLOWED: dict[str, tuple[str | None, ...]] = {
    "text": (None,),
    "lines": (None,),
    "jsonl": (None, *_TEXTS[1:]),
    "json": (None, *_TEXTS[1:]),
    "csv": (None,),
    "tsv": (None,),
}
"""What the first bytes may show in each format whose files are text."""


def check_compression(path: str, head: bytes) -> None:
    """Raise InputError if a file is not compressed as the ending of its name says.

    Says nothing of a file whose first bytes show nothing: it may be damaged.
    """
    name, _, ending = path.rpartition(".")
    ending = f".{ending.lower()}"
    what, magic = next(
        (what, magic) for magic, (what, each) in _MAGICS.items() if each == ending
    )
    if magic.startswith(head[: len(magic)]):
        return
    if ending == ".zst" and _SKIPPABLE.match(head):
        return
    found = _described(head) or ("text" if _is_text(head) else None)
    if found is None or (found not in _ENDING_OF and found != "text"):
        return
    actual = _ENDING_OF.get(found)
    new = name + actual if actual in COMPRESSED else name
    raise InputError(
        f"{path}: is {what} by its name, but begins like {found} at byte 0; rename it "
        f"to {new}"
    )


def _is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file may be text in UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def _check_head(path: str, name: str, head: bytes, *, is_given: bool) -> None:
    """Raise InputError if the first bytes are those of another format than `name`."""
    form, found = FORMATS[name], _described(head)
    if found is None or (found == _TEXTS[0] and ending_of(path) == ".php"):
        return  # A program in PHP may begin with the markup that it prints.
    if found not in _ENDING_OF and (is_given or not form.is_text):
        return  # Its reader says more of it.
    if not form.is_text:
        if _ENDING_OF[found] in form.endings:
            return
    elif found in _ALLOWED[name] or (is_given and _is_text(head)):
        return
    says = "--format" if is_given else "its name"
    raise InputError(
        f"{path}: is {form.what} by {says}, but begins like {found} at byte 0; "
        f"{_way_of_content(path, name, found)}"
    )


def _way_of_content(path: str, name: str, found: str) -> str:
    """Say what to do with a file that is read as `name`, but begins like `found`."""
    ending = _ENDING_OF.get(found, "")
    keeping = ""
    if found in _TEXTS and FORMATS[name].is_text:
        keeping = f", or --format {name} to read it as {FORMATS[name].what}"
    if ending in COMPRESSED:
        if path == "-" or is_compressed(path):
            return "decompress it first"
        return f"rename it to {path}{ending}"
    form = _BY_ENDING.get(ending)
    if form is not None:
        renaming = "" if path == "-" else f"rename it to end with {ending}, or "
        return f"{renaming}pass --format {form}{keeping}"
    if found == _TEXTS[0] and FORMATS[name].kind != "text":
        return "if it is the error page of a download, fetch the file again"
    if found == "a shard of Roxxel":
        return "rename it to end with .rox, and read it with roxxel_format.Roxxel"
    unknown = "", "leave it out, or pass the --format of its bytes"
    return _WAY_OF.get(ending, unknown)[1]


def format_of_head(path: str, name: str, head: bytes, *, is_given: bool) -> str:
    """Return how to read a file, after a look at its first bytes.

    Args:
        path: The file, for messages.
        name: The format that its name implies, or that is given.
        head: Its first `HEAD_BYTES` bytes, after decompression.
        is_given: Whether the user named the format, which then decides alone about
            a file of text.

    Returns:
        `name`; but `jsonl` for JSON that is not an array.

    Raises:
        InputError: The bytes are not what the name says.
    """
    check_no_pointer(path, head, InputError)
    if not FORMATS[name].is_text:
        _check_head(path, name, head, is_given=is_given)
        return name
    for mark, encoding in _WIDE_MARKS.items():
        if head.startswith(mark):
            raise InputError(
                f"{path}: is {encoding}, as its byte order mark says at byte 0; "
                f"convert it first, such as by `iconv -f {encoding} -t UTF-8`"
            )
    head = head.removeprefix(BYTE_ORDER_MARK)
    _check_head(path, name, head, is_given=is_given)
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
        A line that lists the formats if there are several; None for one format.

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
