"""The text of the quickstart: the sources of Python's own standard library.

Every Python installation includes about 12 MB of well-written text, so the quickstart
downloads nothing. One source file is one document; its bytes are its tokens. A second
corpus has the docstrings of the same files, also one document for each file. The
quickstart blends this prose into the code.

Training never reads about 2 % of the files, the held-out files. A hash of the content
selects these files, so names, order and folder do not matter, and copies of a file stay
together. The second corpus omits the docstrings of held-out files.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEPARATOR = 256
"""The token after each document, as in the tokenizer `"bytes"`."""

VOCAB_SIZE = SEPARATOR + 1

HELD_OUT_SHARE = 0.02
"""Share of the documents that training never reads."""

HELD_OUT_BYTES = 64 * 1024
"""Minimum total size of the held-out documents. Only a small library needs this."""

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})
_HASH_RANGE = 2**64


class CorpusError(ValueError):
    """The standard library's sources cannot serve as a corpus."""


@dataclass(frozen=True)
class Document:
    """One source file of the library.

    >>> docstrings(Document("add.py", b"'''Adds.'''"))
    b'Adds.'
    """

    name: str
    """Path below the library's folder, with forward slashes."""
    content: bytes
    """The file's bytes, valid UTF-8 and not empty."""

    @property
    def rank(self) -> int:
        """Hash of the content, in `[0, 2**64)`; the lowest ones are held out."""
        return int.from_bytes(
            hashlib.blake2b(self.content, digest_size=8).digest(), "big"
        )


@dataclass(frozen=True)
class Library:
    """The documents to train on and the held-out documents, each ordered by name."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def find_library() -> Path:
    """Return the folder of the running interpreter's standard library.

    In a virtual environment, this is the library of the Python that created it.
    """
    return Path(sysconfig.get_path("stdlib"))


def read_library(folder: Path) -> Library:
    """Read the library's sources, and separate the held-out documents.

    It omits test files, because some Pythons do not ship their tests. It also omits
    installed packages, generated build settings, empty files, and files that are not
    valid UTF-8.

    Args:
        folder: The standard library's folder, as `find_library` returns it.

    Returns:
        The library; each document is either in `train` or in `held_out`.

    Raises:
        CorpusError: The folder does not exist, or holds too little text to train on.
    """
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
        train=tuple(d for d in documents if d.rank > limit),
        held_out=tuple(d for d in documents if d.rank <= limit),
    )


def docstrings(document: Document) -> bytes:
    """Return the docstrings of a source file, in order, separated by blank lines.

    Returns:
        UTF-8 bytes; empty if the file has no docstring or is not valid Python.
    """
    try:
        with warnings.catch_warnings():
            # Old modules of the library have invalid escapes, which warn.
            warnings.simplefilter("ignore")
            module = ast.parse(document.content)
    except (SyntaxError, ValueError):
        return b""
    found = "\n\n".join(_docstrings_in(module))
    return found.encode("utf-8", errors="replace")


def write_corpora(folder: Path, library: Library) -> None:
    """Write `library.rox`, `docstrings.rox` and `held_out.rox`, and nothing else.

    Args:
        folder: Folder of the corpora, which does not exist yet.
        library: The documents.
    """
    folder.mkdir()
    prose = (docstrings(document) for document in library.train)
    corpora: dict[str, Iterable[bytes]] = {
        "library": (document.content for document in library.train),
        "docstrings": (text for text in prose if text),
        "held_out": (document.content for document in library.held_out),
    }
    for name, documents in corpora.items():
        texts = (document.decode() for document in documents)
        Roxxel(folder / f"{name}.rox").write(texts, tokenizer="bytes", exist="error")


def _documents(folder: Path) -> Iterator[Document]:
    """Yield the library's documents in the order of their names."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    for name in sorted(paths, key=lambda name: name.as_posix()):
        parts = frozenset(name.parts[:-1])
        if parts & _NOT_LIBRARY or parts & _TESTS:
            continue
        if name.name.startswith("_sysconfigdata"):  # differs between machines
            continue
        try:
            content = paths[name].read_bytes()
            content.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if content:
            yield Document(name.as_posix(), content)


def _held_out_limit(documents: tuple[Document, ...]) -> int:
    """Return the highest hash that is held out."""
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
    text = ast.get_docstring(node)
    if text:
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_in(child)
