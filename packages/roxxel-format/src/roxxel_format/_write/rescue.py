"""Make files a corpus again: adopt shards without a manifest, repair a damaged shard.

A manifest can be lost in a copy, and a user's `ShardWriter` makes none. Without it,
nothing says whether the shards are whole, complete in number, and in order. So `adopt`
reads every byte before it commits a new manifest.

A repair fetches the whole copy into a new file, and renames it over the damaged shard.
If it wrote in place, a kill could leave the shard half written, and a process that maps
the shard could read that half.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command
from roxxel_store.files import Output, matches_in, names_in, read_file, visible
from roxxel_store.screen import note
from roxxel_store.urls import DEFAULT_TIMEOUT_S, check_on_disk

from roxxel_format._corpus_name import (
    SUFFIX,
    manifests_in,
    name_to_write,
    shards_of,
)
from roxxel_format._read.contents import file_contents, joined
from roxxel_format._read.files import copy_bytes
from roxxel_format._read.opening import open_shard_file
from roxxel_format._read.shard import LOCAL, open_shard
from roxxel_format._read.verify import is_undamaged, verify_corpus
from roxxel_format._spec.layout import FOOT_SIZE, HEAD_SIZE, parse_layout
from roxxel_format._spec.manifest_file import MAX_MANIFEST_SIZE, parse_manifest
from roxxel_format._write.place import place_of
from roxxel_format.errors import NotAShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_format._corpus_name import CorpusName
    from roxxel_format._read.contents import Contents
    from roxxel_format._read.verify import VerifyReport
    from roxxel_format._spec.manifest import Manifest


def adopt(
    filepath: str | tuple[str, ...],
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Verify shards without a manifest, and commit a manifest of them.

    See `Roxxel.adopt`.
    """
    name = name_to_write(filepath)
    place = place_of(name).as_place("it needs no manifest")
    if place.has_manifest():
        raise FileExistsError(
            f"{place.manifest}: the corpus has a manifest; open it, remove what "
            f"interrupted writes left with `{roxxel_command('format clean')}`, or "
            "write the corpus again"
        )
    # The shards of a write in progress are not all of it. Where nobody has written,
    # nobody can begin to: a write refuses shards without a manifest.
    busy = f"{name.pattern}: a write of this corpus is in progress; wait for it"
    is_new = not name.write_lock.exists()
    with nullcontext() if is_new else place.files.alone(busy):
        paths = _bare_shards(name)
        parts = [file_contents(str(path)) for path in paths]
        contents = joined(name.pattern, parts)
        report = verify_corpus(contents, progress=progress)
        report.raise_if_damaged()
        _check_whole(name, paths)
        _check_alike(parts)
        manifest = _with_tokenizer(contents.manifest, name)
        if not place.commit(manifest):
            raise FileExistsError(
                f"{place.manifest}: appeared meanwhile, so nothing was adopted; open "
                "the corpus"
            )
    _say_columns(name, {path.name for path in paths})
    writes = len({name.job_of(path.name) for path in paths})
    if writes > 1:
        note(
            f"{name.pattern}: the adopted shards come from {writes} writes, and only "
            "the lost manifest says in which order; they are in the order of their "
            "names now"
        )
    return report


def repair_shard(
    filepath: str, copy: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> int | None:
    """Replace a damaged shard on a disk by a copy of it, a path or a URL.

    Returns the size of the shard; None if the shard is not damaged, so that nothing was
    changed.

    Raises:
        ShardError: The head or the foot of the shard is damaged, or the copy is not an
            undamaged copy of this shard.
        OSError: A file cannot be read or written.
    """
    check_on_disk(
        filepath,
        "a repair writes to a local disk, and this is a URL; copy the corpus with "
        f"`{roxxel_command('format copy')}`",
        ShardError,
    )
    path = Path(filepath).resolve()  # A rename would replace a link.
    file = LOCAL.open(str(path))
    size = file.num_bytes
    head, foot = (
        file.read(0, min(size, HEAD_SIZE)),
        file.read(max(0, size - FOOT_SIZE), size),
    )
    try:
        digest = parse_layout(head, foot, size, str(path)).digest
    except NotAShardError:
        raise
    except ShardError as error:
        raise ShardError(
            f"{path}: its head or its foot is damaged, so no copy can be compared with "
            "it; put the copy in its place yourself, and then verify the corpus"
        ) from error
    if is_undamaged(str(path), digest):
        return None
    with Output(path) as output:
        copy_bytes(open_shard_file(copy, timeout_s), output)
        output.finish()
        if not is_undamaged(str(output.draft), digest):
            raise ShardError(
                f"{copy}: is not an undamaged copy of {path}, so nothing was changed; "
                "give another copy of the same shard"
            )
        shutil.copymode(path, output.draft)
        output.publish()
    return size


def _with_tokenizer(manifest: Manifest, name: CorpusName) -> Manifest:
    """Return the manifest with the file that keeps the tokenizer, if it is known."""
    kept = [*filter(name.keeps_tokenizer, names_in(name.folder))]
    if manifest.tokenizer is None or len(kept) != 1:
        return manifest
    size = (name.folder / kept[0]).stat().st_size
    version = replace(manifest.versions[0], tokenizer_file=(kept[0], size))
    return replace(manifest, versions=(version,))


def _say_columns(name: CorpusName, shards: set[str]) -> None:
    """Name the columns that the shards had: a run would miss the column `loss_mask`."""
    columns = {
        each.rsplit(".", 3)[1]
        for each in names_in(name.folder)
        if each not in shards and not shards.isdisjoint(shards_of(each))
    }
    if columns:
        note(
            f"{name.pattern}: the adopted corpus lacks the columns "
            f"{', '.join(sorted(columns))}, because only the lost manifest says what "
            "their files hold; write them again with `write_column`"
        )


def _bare_shards(name: CorpusName) -> list[Path]:
    """Return the shards that a path means and no manifest lists, in natural order.

    Raises:
        FileNotFoundError: There are none.
        ShardError: One is a corpus of one file, or only some have the name of a
            numbered shard.
    """
    listed = {
        shard
        for path in manifests_in(name.folder)
        for shard in parse_manifest(
            read_file(path, MAX_MANIFEST_SIZE, ShardError), str(path)
        ).shards.names
    }
    start = "" if name.is_folder else name.prefix
    matches = visible(matches_in(name.folder, f"{start}*{name.suffix}"))
    found = [name.folder / each.rpartition("/")[2] for each in matches]
    found = [path for path in found if path.name not in listed]
    if not found:
        raise FileNotFoundError(
            f"{name.pattern}: there is no {SUFFIX} file without a manifest; check the "
            "path"
        )
    end = -len(name.suffix)
    whole = next((path for path in found if _is_single(str(path))), None)
    if whole is not None:
        raise ShardError(
            f"{whole}: is a corpus of one file, which needs no manifest and belongs to "
            "no other corpus; move it elsewhere, or pass a pattern that leaves it out"
        )
    own = [
        path
        for path in found
        if name.is_own(path.name) or path.name[len(start) : end].isdigit()
    ]
    others = [path for path in found if path not in own]
    if own and others:
        raise ShardError(
            f"{name.pattern}: may mean {own[0].name} and {others[0].name}, which need "
            f'not be of one corpus; move the one, or adopt "{_pattern_of(others[0])}" '
            "first"
        )
    return found


def _is_single(path: str) -> bool:
    """Return whether a file is a corpus of one file, by its metadata."""
    try:
        return "arguments" in open_shard(path).metadata()
    except ShardError:
        return False


def _pattern_of(path: Path) -> str:
    """Return the pattern of the corpus that a shard looks like."""
    stem = path.name.removesuffix(SUFFIX)
    return f"{stem.rstrip('0123456789')}*{SUFFIX}"


def _check_whole(name: CorpusName, paths: list[Path]) -> None:
    """Raise ShardError if a piece of a write is missing."""
    expected: tuple[str, int] | None = None
    for path in paths:
        found = name.piece_of(path.name)
        if found is not None:
            start, number = found
            if expected is None or expected[0] != start:  # A write begins with piece 0.
                expected = start, 0 if start else number
            if found != expected:
                raise ShardError(
                    f"{path}: the shard before it, {name.piece(*expected)}, is "
                    "missing; restore it, or, if there never was one, rename this "
                    "shard and those after it"
                )
            expected = start, number + 1


def _check_alike(parts: Sequence[Contents]) -> None:
    """Raise ShardError if shards differ in a fact that a manifest records only once."""
    first: dict[str, Any] = {}
    for part in parts:
        facts = {
            "block size": part.block_size,
            **part.manifest.alike,
            "tokenizer": part.manifest.tokenizer,
        }
        first = first or facts
        for what, value in facts.items():
            if value != first[what]:
                raise ShardError(
                    f"{part.filepath}: the {what} is {value!r}, but {first[what]!r} in "
                    f"{parts[0].filepath}, so they are not of one corpus; keep the "
                    "shards of each corpus under a pattern of their own"
                )
