"""Write files into a corpus, or into several, as `roxxel-prepare write` does.

The inputs are divided into units: consecutive files, or parts of a large file.
Processes of this machine, tasks of Ray, or the members of a job array write the units;
all three give the same bytes. The commit makes the shards a corpus.

Several corpora divide the documents, by a hash of their tokens or by their length.
"""

from __future__ import annotations

import contextlib
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast

from roxxel_format import ShardError
from roxxel_format.writing import Fields, Place, Recipe, Side
from roxxel_store.arguments import as_integer
from roxxel_store.screen import note

from roxxel_prepare._inputs.listing import find_inputs
from roxxel_prepare._run.plan import Plan
from roxxel_prepare._run.preparation import PartSummary, commit_plan, prepare
from roxxel_prepare._run.ray_runner import RayRunner
from roxxel_prepare._run.runners import UNIT_BYTES, ProcessRunner, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roxxel_format import WriteArguments, WriteSummary
    from roxxel_format.writing import Exist

    from roxxel_prepare._run.runners import Runner

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
            goes to the first corpus whose bins have room for it with what ends it,
            or else to the last. Use it instead of `pack`.
        shuffle: Seed of the order of units, and of the documents in each.
        skip_bad: Leave out damaged documents. If damage makes the rest of a file
            unreadable, leave out the rest.
        progress: Called before the first unit, when a unit ends, and when a unit is
            retried because its worker died.
        **arguments: `WriteArguments`, as for `Roxxel.write`. The end of a unit also
            ends a shard. `pack` packs each unit by itself. Each process loads the
            tokenizer, so pass its path or name.

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
    unit_bytes = as_integer("unit_bytes", unit_bytes, 1)
    check_part(part)
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
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


def runner_of(workers: int | None, ray: str | None) -> Runner | None:
    """Return the runner of units; None if the size of the inputs decides."""
    if ray is not None and workers not in (None, 1):
        raise ValueError(
            f"ray={ray!r} and workers={workers}: units are written by tasks of Ray or "
            "by processes; pass only one of these"
        )
    if workers is not None:
        as_integer("workers", workers, 1)
    if ray is not None:
        return RayRunner(ray or None)
    return None if workers is None else ProcessRunner(workers)


def check_part(part: object) -> None:
    """Raise ValueError for an invalid part."""
    if part is None:
        return
    is_pair = isinstance(part, (tuple, list)) and len(cast("Any", part)) == 2
    member, count = cast("Any", part if is_pair else (0, 0))
    if not 0 <= as_integer("part", member) < as_integer("part", count):
        raise ValueError(f"part={part!r} must be (i, n) with i in [0, n), as (0, 8)")


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


def commit_units(filepath: str) -> dict[str, WriteSummary]:
    """Commit a preparation whose parts are done; see `prepare`.

    If the preparation holds documents out (`split`), first commits the held-out corpus.
    If it was committed before, prints this and changes nothing. Returns a summary for
    each corpus, by the path of the corpus.

    Raises:
        FileNotFoundError: There is no preparation to commit.
        ValueError: Units are missing; the message names them.
    """
    summaries: dict[str, WriteSummary] = {}
    place = Place.of(filepath)
    name = place.name.plan.name
    if place.read(name) is None:
        return {filepath: _committed(place, filepath)}
    with ExitStack() as resources:
        place.enter(resources)
        data = place.read(name)
        if data is None:
            return {filepath: _committed(place, filepath)}
        plan = Plan.parse(data, place.folder + name)
        recipe = plan.recipe
        place.begin(replaces=recipe.exist == "replace")
        if recipe.side is not None and not recipe.side.is_held_out:
            held_out = path_beside(filepath, recipe.side.name)
            # The held-out corpus has no plan if an earlier process committed it and
            # then was killed.
            with contextlib.suppress(FileNotFoundError):
                summaries |= commit_units(held_out)
        summaries[filepath] = commit_plan(place, plan)
    if recipe.exist != "append":
        place.remove_leftovers()
    return summaries


def _committed(place: Place, filepath: str) -> WriteSummary:
    """Return the summary of a corpus whose preparation was committed before.

    Raises FileNotFoundError if no preparation was committed.
    """
    found = place.existing()
    if found is None or all("inputs" not in v.arguments for v in found.versions):
        raise FileNotFoundError(
            f"{filepath}: has no preparation to commit; check the path, and that a "
            "part was written"
        )
    kept = place.summary(place.listed(found), fingerprint=found.fingerprint, kept=True)
    note(
        f"{filepath}: already committed, with {kept.num_tokens:,} tokens in "
        f"{kept.num_documents:,} documents"
    )
    return kept


def recipes_of(
    filepath: str,
    recipe: Recipe,
    split: tuple[str, float] | None,
    buckets: Sequence[int] | None,
) -> dict[str, Recipe]:
    """Return the recipes of a command's corpora, by path, in the order of writing.

    Held-out documents come first, so that no corpus exists without them.

    Args:
        filepath: Path of the corpus.
        recipe: The arguments of the command.
        split: Name and share of the held-out documents.
        buckets: Tokens of a bin for each range of lengths, ascending.

    Raises:
        ValueError: `split` or `buckets` is invalid.
    """
    found = {filepath: recipe}
    if buckets is not None:
        buckets = checked_buckets(buckets, recipe.pack)
        tops = [*buckets[:-1], None]
        least = [0, *(each + 1 for each in buckets[:-1])]
        found = {
            path_beside(filepath, str(pack)): replace(
                recipe, lengths=(low, high), pack=pack
            )
            for low, high, pack in zip(least, tops, buckets, strict=True)
        }
    if split is None:
        return found
    name, share = checked_split(split)
    return {
        path_beside(path, name) if is_held_out else path: replace(
            each, side=Side(name, share, is_held_out)
        )
        for path, each in found.items()
        for is_held_out in (True, False)
    }


def check_divided(recipes: Mapping[str, Recipe]) -> None:
    """Raise FileExistsError if a corpus exists and has no side, or one of another name.

    Otherwise the command would write, and then leave, a held-out corpus that does not
    belong to the corpus it stands beside.

    Args:
        recipes: What `recipes_of` returns.
    """
    for path, recipe in recipes.items():
        side = recipe.side
        if side is None or side.is_held_out:
            continue
        try:
            found = Place.existing_at(path)
        except ShardError:
            if recipe.exist != "replace":
                raise
            continue  # Nothing says how it was divided.
        if found is None:
            continue
        old = Side.of(found)
        may_begin = old is None and recipe.exist in {"replace", "append"}
        if not may_begin and (old is None or old.name != side.name):
            by = "" if old is None else f"by {old.name}={old.share}"
            raise FileExistsError(
                f"{path}: was {f'divided {by}' if by else 'not divided by a split'}, "
                f"so {side.name}={side.share} cannot hold out "
                f"{path_beside(path, side.name)} beside it; write elsewhere, or delete "
                "what is there first"
            )


def checked_buckets(lengths: Sequence[int], pack: int | None = None) -> list[int]:
    """Return the lengths of `bucket_by_length`, which must ascend from 2.

    Raises ValueError for other lengths, and if `pack` is given too.
    """
    is_listed = hasattr(type(lengths), "__iter__")
    if not is_listed or isinstance(cast("object", lengths), str | bytes):
        raise TypeError(f"bucket_by_length must be a list, got {lengths!r:.50}")
    found = [as_integer("bucket_by_length", each, 2) for each in lengths]
    if not found or found != sorted({*found}):
        raise ValueError(
            f"bucket_by_length={found} must be lengths that ascend, such as "
            "[513, 1025, 4097]"
        )
    if pack is not None:
        raise ValueError(
            f"pack={pack} and bucket_by_length={found}: each length is packed by "
            "itself; pass only one"
        )
    return found


def checked_split(split: object) -> tuple[str, float]:
    """Return a split; raise ValueError unless it is a plain name and a share."""
    with contextlib.suppress(TypeError, ValueError):
        name, share = cast("tuple[Any, Any]", split)
        number = float(share)
        if re.fullmatch("[A-Za-z0-9-]+", name) and 0 < number < 1:
            return name, number
    raise ValueError(
        f"split={split!r} must be a name of letters, digits and -, and a share "
        'between 0 and 1, such as ("valid", 0.001)'
    )


def path_beside(filepath: str, name: str) -> str:
    """Return the path of another corpus of a command, such as `wiki_valid_*.rox`.

    The name, of a split or a length, is inserted before the star, the suffix `.rox`, or
    the slash at the end. `out/*.rox` has no name before the star, so the other corpus
    is a folder in `out`: `out/valid/*.rox`.
    """
    path = filepath.rstrip("/")
    head, slash, last = path.rpartition("/")
    prefix, star, suffix = last.partition("*")
    if last == "*.rox":  # the folder, which can hold one corpus
        new = f"{name}/*.rox"
    elif star and not prefix:
        new = f"{name}_*{suffix}"
    elif star:
        end = "_" if prefix.endswith("_") else ""
        new = f"{prefix.removesuffix('_')}_{name}{end}*{suffix}"
    else:
        stem = last.removesuffix(".rox")
        new = f"{stem}_{name}{last[len(stem) :]}"
    return head + slash + new + filepath[len(path) :]
