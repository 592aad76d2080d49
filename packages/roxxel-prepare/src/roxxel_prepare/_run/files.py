"""Write files into a corpus, as the command `roxxel-prepare write` does.

The inputs are divided into units: consecutive files, or parts of a large file.
Processes of this machine, tasks of Ray, or the members of a job array write the units;
all three give the same bytes. The commit makes the shards a corpus.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack, cast

from roxxel_format.writing import Fields, Recipe
from roxxel_store.arguments import as_integer

from roxxel_prepare._inputs.formats import FORMATS
from roxxel_prepare._inputs.listing import find_inputs
from roxxel_prepare._plan.side import (
    check_divided,
    checked_buckets,
    checked_split,
    recipes_of,
)
from roxxel_prepare._plan.units import UNIT_BYTES
from roxxel_prepare._run.driving import Progress, check_part, runner_of
from roxxel_prepare._run.preparation import PartSummary, commit_units, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_format import WriteArguments, WriteSummary
    from roxxel_format.writing import Exist

__all__ = ["PartSummary", "Progress", "commit_files", "write_files"]


def write_files(
    filepath: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,  # noqa: A002 - the name of the command's option
    field: str | None = None,
    prompt: str | None = None,
    completion: str | None = None,
    chat: str | os.PathLike[str] | bool = False,
    document_id: str | None = None,
    path: bool = False,
    exist: Exist = "keep",
    workers: int | None = 1,
    ray: str | None = None,
    part: tuple[int, int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    split: tuple[str, float] | None = None,
    bucket_by_length: Sequence[int] | None = None,
    shuffle: int | None = None,
    skip_bad: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **arguments: Unpack[WriteArguments],
) -> list[WriteSummary | PartSummary]:
    """Write the documents of files into a corpus, and commit the corpus.

    After an interruption or an error, the same call continues: it writes the units that
    are not done.

    Args:
        filepath: Path of the corpus; a pattern such as `wiki_*.rox`, unless one process
            writes one file.
        inputs: Files, folders, patterns, or URLs of these. Files in a folder that are
            no data, such as `README.md`, are left out.
        format: `"text"`, `"lines"`, `"jsonl"`, `"json"`, `"csv"`, `"tsv"`, `"npy"`,
            `"parquet"`, `"arrow"` or `"ds"`. Default: that of each file's name, which
            its first bytes must confirm.
        field: Field of JSON objects, or column of tables, that holds the document.
            Default: `text`, or `messages` with `chat`, or the fields `prompt` and
            `completion`.
        prompt: Field of prompts; as for `Roxxel.write`.
        completion: Field of completions; needs `prompt`.
        chat: Whether documents are chats, lists of messages that the tokenizer's chat
            template renders, or the path of a template; as for `Roxxel.write`. Needs
            the extra `chat`.
        document_id: Field of ids, which documents keep in a column `id`.
        path: Keep the path of each document's file, relative to the folder of all
            inputs, in a column `path`.
        exist: As for `Roxxel.write`; but `"keep"` also compares the inputs with those
            of the last write.
        workers: Processes of this machine. None means one for each core, but at most
            one for every 64 MiB of inputs. A worker does not import your program. So
            the program needs no main guard, but your own tokenizer class must stand in
            another module.
        ray: Address of a Ray cluster that writes the units as tasks, in place of
            processes; `""` means the cluster in `RAY_ADDRESS`, or the one on this
            machine. Needs the extra `ray`. A program that is connected to Ray uses its
            own cluster.
        part: `(i, n)`: write the units of member `i` of `n`, from 0, and do not commit.
            When all members are done, `commit_files` commits.
        unit_bytes: Minimum size of the inputs of a unit.
        split: `(name, share)`: hold out this share of the documents, chosen by a hash
            of their tokens, in a second corpus: `wiki_name_*.rox` for `wiki_*.rox`.
        bucket_by_length: Ascending lengths, such as `[513, 1025, 4097]`: write a packed
            corpus for each, `wiki_513_*.rox` and so on for `wiki_*.rox`. A document
            goes to the first corpus whose bins have room for it and its separator, or
            else to the last. Use it instead of `pack`.
        shuffle: Seed of the order of units, and of the documents in each.
        skip_bad: Leave out damaged documents. If damage makes the rest of a file
            unreadable, leave out the rest.
        progress: Called before the first unit, when a unit ends, and when a unit is
            retried because its worker died.
        **arguments: `separator`, `block_size`, `max_shard_bytes`, `pack`, `dtype`,
            `vocab_size`, `tokenizer`, `special_tokens`, `without_columns` and
            `metadata`, as for `Roxxel.write`. The end of a unit also ends a shard.
            `pack` packs each unit by itself. Each process loads the tokenizer, so pass
            its path or name.

    Returns:
        A summary of the corpus, or of the part. With `split`, a list of two: first the
        summary of the held-out documents. With `bucket_by_length`, such a result for
        each length.

    Raises:
        BucketError: An object cannot be read, or was replaced.
        FileExistsError: `exist` does not allow changing the corpus, or a preparation
            with other inputs or arguments is not finished.
        OSError: A file cannot be read or written, or worker processes died.
        ValueError: A document or an argument is invalid; the message names its file.

    Example:
        >>> np.save("ids.npy", np.arange(12).reshape(3, 4))
        >>> [summary] = write_files("ids_*.rox", "ids.npy", vocab_size=100)
        >>> summary.num_documents, summary.dtype
        (3, 'uint16')
    """
    runner = runner_of(workers, ray)
    as_integer("unit_bytes", unit_bytes, 1)
    _check_choices(format, split)
    check_part(part)
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if bucket_by_length is not None:
        bucket_by_length = checked_buckets(bucket_by_length, arguments.get("pack"))
    fields = Fields(field or "", prompt, completion, document_id, path, chat)
    recipe = Recipe(
        **arguments, exist=exist, fields=fields, shuffle=shuffle, skip_bad=skip_bad
    )
    recipes = recipes_of(os.fspath(filepath), recipe, split, bucket_by_length)
    names = [str(each) for each in inputs]
    files = find_inputs(names, format, fields, field=field, outputs=[*recipes])
    if len(recipes) > 1:
        what = "a split" if split is not None else "bucket_by_length"
        if files.stream is not None:
            raise ValueError(
                f"{files.stream}: cannot be read twice, as {what} needs; pass files"
            )
        check_divided(recipes)
        if exist == "append":
            side = next(iter(recipes.values())).side
            raise ValueError(
                f"{filepath}: {what} cannot append to several corpora as one; "
                f"{'write new corpora' if side is None else side.how_to_append()}"
            )
    return [
        prepare(
            each,
            files,
            of_one,
            runner=runner,
            part=part,
            unit_bytes=unit_bytes,
            progress=progress,
        )
        for each, of_one in recipes.items()
    ]


def _check_choices(form: object, split: object) -> None:
    """Raise ValueError for an invalid format or split."""
    if form is not None and form not in FORMATS:
        raise ValueError(f"format={form!r} must be one of {', '.join(FORMATS)}")
    if split is not None:
        checked_split(*cast("Any", split if isinstance(split, tuple) else (split, 0)))


def commit_files(filepath: str | os.PathLike[str]) -> list[WriteSummary]:
    """Commit a corpus when all members of `write_files(..., part=(i, n))` are done.

    Args:
        filepath: Path of the corpus, as for `write_files`.

    Returns:
        A summary of the corpus; with a split, a list of two, as `write_files` returns.

    Raises:
        FileNotFoundError: No part of the corpus was written.
        ValueError: Units are missing; the message names them, and nothing changes.
    """
    return list(commit_units(os.fspath(filepath)).values())
