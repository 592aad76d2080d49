"""The text of the quickstart: the sources of Python's own standard library.

Every Python brings some twelve megabytes of well-written text with it, so there is
nothing to download. One source file is one document; its bytes are its tokens. A
second corpus holds the docstrings of the same files, one document a file as well:
prose to blend into the code.

About 2 % of the files are held out, chosen by a hash of their content alone: the
choice does not depend on names, order or place, a copy of a held-out file is held
out too, and a held-out file gives nothing to the docstrings either.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_OUT_SHARE = 0.02
"""Share of the documents that are never trained on."""

HELD_OUT_BYTES = 64 * 1024
"""The held-out documents hold at least this much, however small the library is."""

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})
_HASH_RANGE = 2**64


class CorpusError(ValueError):
    """The standard library's sources cannot serve as a corpus."""


@dataclass(frozen=True)
class Document:
    """One source file of the library."""

    name: str
    """Path below the library's folder, with forward slashes."""
    content: bytes
    """The file's bytes, valid UTF-8 and not empty."""

    @property
    def rank(self) -> int:
        """Hash of the content, in `[0, 2**64)`; the lowest ranks are held out."""
        return int.from_bytes(
            hashlib.blake2b(self.content, digest_size=8).digest(), "big"
        )


@dataclass(frozen=True)
class Library:
    """The documents to train on and those held out, each in the order of names."""

    folder: Path
    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def find_library() -> Path:
    """Return the folder of the running interpreter's standard library.

    Inside a virtual environment this is the library of the Python behind it.
    """
    return Path(sysconfig.get_path("stdlib"))


def read_library(folder: Path) -> Library:
    """Read the library's sources and set the held-out ones apart.

    Test files, installed packages and generated build settings are left out, so the
    documents are the same whether or not the system's Python ships its tests. A file
    that is empty or no valid UTF-8 is passed over.

    Args:
        folder: The standard library's folder, as `find_library` gives it.

    Returns:
        All documents, none in both parts and none missing.

    Raises:
        CorpusError: The folder does not exist, or holds too little text to train on.
    """
    if not folder.is_dir():
        raise CorpusError(
            f"{folder}: no such folder, but this Python says that its standard "
            "library is there; use a Python that is installed with its sources"
        )
    documents = tuple(_documents(folder))
    num_bytes = sum(len(document.content) for document in documents)
    if num_bytes < 4 * HELD_OUT_BYTES:
        raise CorpusError(
            f"{folder}: {len(documents)} source files with {num_bytes} bytes are too "
            f"few to train on ({4 * HELD_OUT_BYTES} bytes at least); use a Python "
            "that is installed with its sources"
        )
    limit = _held_out_limit(documents)
    return Library(
        folder=folder,
        train=tuple(d for d in documents if d.rank > limit),
        held_out=tuple(d for d in documents if d.rank <= limit),
    )


def docstrings(document: Document) -> bytes:
    """Return the docstrings of a source file, in their order, a blank line between.

    Returns:
        UTF-8 bytes; empty where the file has no docstring or is no valid Python.
    """
    try:
        with warnings.catch_warnings():
            # A stray backslash in an old module is not the newcomer's problem.
            warnings.simplefilter("ignore")
            module = ast.parse(document.content)
    except (SyntaxError, ValueError):
        return b""
    found = "\n\n".join(_docstrings_in(module))
    return found.encode("utf-8", errors="replace")


def _documents(folder: Path) -> Iterator[Document]:
    """Yield the library's documents in the order of their names."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    for name in sorted(paths, key=lambda name: name.as_posix()):
        parts = frozenset(name.parts[:-1])
        if parts & _NOT_LIBRARY or parts & _TESTS:
            continue
        if name.name.startswith("_sysconfigdata"):  # differs from machine to machine
            continue
        try:
            content = paths[name].read_bytes()
            content.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if content:
            yield Document(name.as_posix(), content)


def _held_out_limit(documents: tuple[Document, ...]) -> int:
    """Return the highest rank that is held out."""
    limit = int(HELD_OUT_SHARE * _HASH_RANGE)
    num_bytes = 0
    for document in sorted(documents, key=lambda document: document.rank):
        if document.rank > limit and num_bytes >= HELD_OUT_BYTES:
            break
        limit = max(limit, document.rank)
        num_bytes += len(document.content)
    return limit


def _docstrings_in(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[str]:
    """Yield the docstrings of a node and of what is defined in it."""
    text = ast.get_docstring(node)
    if text:
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_in(child)
