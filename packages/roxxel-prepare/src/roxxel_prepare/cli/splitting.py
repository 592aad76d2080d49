"""Hold out documents of a corpus: `write --split` with a corpus as input."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roxxel_format import Roxxel
from roxxel_format.writing import CorpusFiles, CorpusWrite, Recipe
from roxxel_store.screen import note

from roxxel_prepare._run.files import check_divided, recipes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt
    from roxxel_format import WriteSummary
    from roxxel_format.writing import Exist


def split(
    source: str,
    target: str,
    share: tuple[str, float],
    max_shard_bytes: int | None,
    exist: Exist,
) -> dict[str, WriteSummary]:
    """Write a share of the documents into one corpus and the rest into another.

    A document's tokens alone decide its corpus, as in a write of files. So equal
    documents are in the same corpus, and adding documents to the source does not move
    other documents. Returns the summary of each corpus that was written, by path.
    """
    with Roxxel(source) as corpus:
        _check_dense(corpus, source)
        _check_columns(corpus, source)
        recipe = _recipe_of(corpus, max_shard_bytes, exist)
        recipes = recipes_of(target, recipe, share, None)
        # Resolve both paths first: a write may change which corpus a folder's path
        # names.
        sharded = recipe.may_make_several
        files = [CorpusFiles(each, sharded=sharded) for each in recipes]
        _check_apart(corpus, [*recipes], files)

        def chosen(recipe: Recipe) -> Iterator[npt.NDArray[Any]]:
            return (each for each in corpus.documents if recipe.has(each, each.size))

        # Check both outputs before the first write, because no corpus can be empty.
        for output, recipe in recipes.items():
            if next(chosen(recipe), None) is None:
                raise ValueError(
                    f"{output}: none of {corpus.num_documents} documents would be in "
                    f"this corpus with share={share[1]}; choose another share"
                )
        of_source = corpus.tokenizer is not None
        writes = [
            CorpusWrite(
                each.filepath,
                recipe,
                tokenizer_files=corpus.tokenizer_files if of_source else None,
            )
            for each, recipe in zip(files, recipes.values(), strict=True)
        ]
        check_divided(recipes)
        # An append that is refused later leaves half a split. So does one that is
        # killed, and the same command then appends to the other side alone.
        done = [write.has_appended() for write in writes]
        written: dict[str, WriteSummary] = {}
        for has, write, output in zip(done, writes, recipes, strict=True):
            if has:
                note(f"{output}: has the documents of {source} already; appended none")
            else:
                documents = chosen(recipes[output])
                written[output] = write.run(documents, is_encoded=True)
        return written


def _recipe_of(corpus: Roxxel, max_shard_bytes: int | None, exist: Exist) -> Recipe:
    """Return the arguments that write the documents of a corpus as they are."""
    first, with_separator = corpus.documents[0], corpus.documents.with_separator[0]
    return Recipe.copying(
        corpus.metadata,
        with_separator[first.size :].tobytes(),
        block_size=corpus.block_size,
        max_shard_bytes=max_shard_bytes,
        dtype=corpus.dtype_name,
        exist=exist,
        inputs=corpus.fingerprint,
    )


def _check_columns(corpus: Roxxel, source: str) -> None:
    columns = sorted({*corpus.columns, *corpus.partial_columns})
    if columns:
        raise ValueError(
            f"{source}: has columns ({', '.join(columns)}), which a split "
            "of a corpus does not copy; pass --split when you write the files"
        )


def _check_dense(corpus: Roxxel, source: str) -> None:
    """Raise an error if the corpus is packed: it may hold parts of documents."""
    if corpus.unit is not None:
        raise ValueError(
            f"{source}: is packed in bins of {corpus.unit} tokens, and a split "
            "would hold out parts of documents; pass --split beside --pack when you "
            "write the files"
        )


def _check_apart(
    corpus: Roxxel, outputs: Sequence[str], files: Sequence[CorpusFiles]
) -> None:
    """Check that no write to an output can change the source."""
    paths = corpus.filepath
    paths = (paths,) if isinstance(paths, str) else paths
    read = {*corpus.paths, *map(os.path.realpath, corpus.paths)}
    for output, mine in zip(outputs, files, strict=True):
        if any(map(mine.has, read)):
            raise ValueError(
                f"{output}: a write could delete files of {', '.join(paths)}, the "
                "source of the split; use another path"
            )
