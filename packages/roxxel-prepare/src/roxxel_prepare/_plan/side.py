"""Divide documents over several corpora, by their content or their length."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_format import ShardError
from roxxel_format.writing import Place, Side
from roxxel_store.arguments import as_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_format.writing import Recipe


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
    """
    found = {filepath: recipe}
    if buckets is not None:
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
    name, _ = split
    return {
        path_beside(path, name) if is_held_out else path: replace(
            each, side=Side(*split, is_held_out)
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


def checked_split(name: object, share: object) -> tuple[str, float]:
    """Return a split; raise ValueError unless it is a plain name and a share."""
    with contextlib.suppress(TypeError, ValueError):
        number = float(cast("Any", share))
        if re.fullmatch("[A-Za-z0-9-]+", cast("Any", name)) and 0 < number < 1:
            return str(name), number
    raise ValueError(
        f"split={(name, share)!r} must be a name of letters, digits and -, and a share "
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
