"""Split the documents of a corpus into two corpora, by a hash of their content."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from roxxel_format._store.corpus_name import absolute
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.options import Exist
    from roxxel_format._write.summary import WriteSummary
    from roxxel_format.corpus import Roxxel

_MAX_SALT = 64


def split(
    corpus: Roxxel,
    kept: str,
    held_out: str,
    share: float,
    *,
    salt: str = "",
    max_shard_bytes: int | None = None,
    exist: Exist = "keep",
) -> tuple[WriteSummary, WriteSummary]:
    """Write a share of the documents into one corpus and the rest into another.

    The content of a document alone decides: equal documents go into the same corpus,
    and adding documents to the source moves none of the others.

    Args:
        corpus: The documents.
        kept: Path of the corpus of the documents that are not held out.
        held_out: Path of the corpus of the others.
        share: Share of the documents to hold out, between 0 and 1.
        salt: Changes the choice; at most 64 bytes of UTF-8.
        max_shard_bytes: As for `Roxxel.write`.
        exist: As for `Roxxel.write`.

    Returns:
        What was written to `kept` and to `held_out`.

    Raises:
        ValueError: One of the two would be empty, `share` is out of range, or `salt`
            is too long.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    metadata = corpus.metadata
    separator = corpus.documents.with_separator[0][corpus.documents[0].size :]
    threshold = int(share * 2**64)
    key = salt.encode()
    if len(key) > _MAX_SALT:
        raise ValueError(f"salt has {len(key)} bytes, more than {_MAX_SALT}")
    # A corpus without documents cannot be written, so check both before the first.
    for path, wanted in ((kept, False), (held_out, True)):
        if next(_chosen(corpus, threshold, key, held_out=wanted), None) is None:
            raise ValueError(
                f"{path}: would get none of the {corpus.num_documents} documents with "
                f"share={share}; choose another share or salt"
            )
    summaries: list[WriteSummary] = []
    for path, wanted in ((kept, False), (held_out, True)):
        options = WriteOptions(
            separator=separator.tobytes() or None,
            block_size=corpus.block_size,
            max_shard_bytes=max_shard_bytes,
            dtype=corpus.dtype_name,
            metadata={
                name: metadata[name]
                for name in metadata
                if name not in {"write", "arguments", "created_by", "separator"}
            },
            inputs=f"{corpus.fingerprint} {share} {salt!r} {wanted}",
        )
        documents = _chosen(corpus, threshold, key, held_out=wanted)
        summaries.append(write_corpus(absolute(path), documents, options, exist))
    return summaries[0], summaries[1]


def _chosen(
    corpus: Roxxel, threshold: int, key: bytes, *, held_out: bool
) -> Iterator[Tokens]:
    for document in corpus.documents:
        digest = blake2b(document.tobytes(), digest_size=8, key=key).digest()
        if (int.from_bytes(digest, "little") < threshold) == held_out:
            yield document
