"""Documents by number or name, as commands accept and print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def named(corpus: Any, document: int) -> str:
    """Return the name of a document in parentheses, after a space.

    Args:
        corpus: A `Roxxel`, or any other reader.
        document: Number of the document.

    Returns:
        The text, such as ` (web/17)`; empty if the document has no name. Characters
        that could control the terminal are escaped.
    """
    of_corpus = getattr(corpus, "document_name", None)
    name = None if of_corpus is None else of_corpus(document)
    return "" if name is None else f" ({printable(name)})"


def names_of(corpus: Any, documents: Sequence[int]) -> list[str] | None:
    """Return the names of documents; None if the corpus has no names.

    Args:
        corpus: A `Roxxel`, or any other reader.
        documents: Numbers of the documents.
    """
    of_corpus = getattr(corpus, "document_name", None)
    names = [] if of_corpus is None else [of_corpus(each) for each in documents]
    return None if not names or None in names else names


def documents_at(corpus: Any, text: str) -> list[int]:
    """Return the documents that a text chooses: a number, or a name.

    Args:
        corpus: A `Roxxel`.
        text: A number from 0, or a name, which may have `id=` before it.

    Returns:
        The numbers of the documents: one for a number, one or more for a name.

    Raises:
        IndexError: There is no document of this number.
        ValueError: There is no document of this name, or documents have no names.
    """
    if text.removeprefix("-").isdecimal():
        number = int(text)
        try:
            corpus.document_range(number)
        except IndexError as error:
            raise IndexError(f"{corpus.filepath}: {error}") from error
        return [number]
    name = text.removeprefix("id=")
    found = corpus.find_documents(name)
    if found:
        return found
    if corpus.num_documents and corpus.document_name(0) is None:
        raise ValueError(
            f"{corpus.filepath}: documents have no names, so {name!r} chooses none; "
            "give a number, or write the corpus with --id or --path"
        )
    raise ValueError(
        f"{corpus.filepath}: no document has the name {name!r}; print the names with "
        f"`{roxxel_command('format cat --names')}`"
    )
