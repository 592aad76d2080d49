"""The texts of evaluation sets: every text in every field of every row.

The fields of questions and answers differ from set to set, and in a field that nobody
named, nobody would find a leak. So all fields are searched.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_format import Roxxel
from roxxel_format.texts import text_codec
from roxxel_format.writing import Fields

from roxxel_prepare._inputs.documents import documents_in
from roxxel_prepare._inputs.listing import find_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt


def texts_of(paths: Sequence[str]) -> Iterator[str | npt.NDArray[Any]]:
    """Yield the texts of evaluation sets; files of tokens give arrays.

    Args:
        paths: Files, folders, patterns or URLs, as for `write_files`, or corpora: paths
            that end in `.rox`. The documents of a corpus are texts if it records its
            tokenizer.

    Raises:
        InputError: A file is damaged, or of no known format.
        FileNotFoundError: There is no such file.
    """
    for path in paths:
        if path.endswith(".rox"):
            yield from _of_corpus(path)
            continue
        for part in find_inputs([path]).parts:
            for document in documents_in(part, Fields(every=True)):
                if isinstance(document, list):
                    yield from _texts_in(cast("list[object]", document))
                else:
                    yield cast("Any", document)


def digest_of(texts: Iterable[str | npt.NDArray[Any]]) -> str:
    """Return a digest of texts, in their order."""
    digest = blake2b(digest_size=16)
    for text in texts:
        if isinstance(text, str):
            data, kind = text.encode(errors="surrogatepass"), "text"
        else:
            data, kind = text.astype("<i8").tobytes(), "tokens"
        digest.update(f"{kind} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()


def _of_corpus(path: str) -> Iterator[str | npt.NDArray[Any]]:
    with Roxxel(path) as corpus:
        codec = text_codec(corpus)
        for document in corpus.documents:
            if codec is None:
                yield np.array(document)
            else:
                yield codec.decode(document).decode(errors="replace")


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in cast("dict[Any, Any]", value).values():
            yield from _texts_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _texts_in(each)
