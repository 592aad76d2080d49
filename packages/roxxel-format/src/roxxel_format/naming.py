"""Documents by number or name, as commands accept and print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_format.token_reader import TokenReader


def named(corpus: TokenReader, document: int) -> str:
    """Return the name of a document in parentheses, after a space.

    Args:
        corpus: The corpus.
        document: Number of the document.

    Returns:
        The text, such as ` (web/17)`; empty if the document has no name. Characters
        that could control the terminal are escaped.
    """
    name = corpus.document_name(document)
    return "" if name is None else f" ({printable(name)})"


def named_documents(corpus: TokenReader, numbers: Sequence[int]) -> str:
    """Return a text of documents with their names: `documents 3 (a:3), 4 (a:4)`."""
    listed = ", ".join(f"{number}{named(corpus, number)}" for number in numbers)
    return f"document{'s' * (len(numbers) != 1)} {listed}"


def names_of(corpus: TokenReader, documents: Sequence[int]) -> list[str] | None:
    """Return the names of documents; None if the corpus has no names.

    Args:
        corpus: The corpus.
        documents: Numbers of the documents.
    """
    names = [corpus.document_name(each) for each in documents]
    found = [name for name in names if name is not None]
    return found if found and len(found) == len(names) else None


def documents_at(corpus: Any, text: str) -> list[int]:
    """Return the documents that a text chooses: a number, or a name.

    Args:
        corpus: A `Roxxel`.
        text: A number from 0, or a name, which may have `id=` before it.

    Returns:
        The numbers of the documents: one for a number, one or more for a name.

    Raises:
        IndexError: There is no document of this number.
        ValueError: There is no document of this name, or the documents have no names.
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
            "give a number, or write the corpus with --document-id or --path"
        )
    raise ValueError(
        f"{corpus.filepath}: no document has the name {name!r}; print the names with "
        f"`{roxxel_command('format cat --names')}`"
    )
