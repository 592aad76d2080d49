"""Find the corpus that a plain name means.

A plain name is a path without a star that does not exist. `t` and `t.rox` mean the
shards `t_*.rox`, and `t` also means the file `t.rox`, if these exist. If neither
exists, a write creates one of them. `t/` is the folder. File names alone do not decide:
`t_20240101.rox` may be a corpus of one file, or a file of another program. If there is
no manifest, the caller checks the files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.files import names_in

from roxxel_format._store.corpus_name import (
    SUFFIX,
    corpus_name,
    is_folder,
    is_pattern,
    matching_files,
    visible,
)
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roxxel_format._store.corpus_name import CorpusName


def resolved(
    filepath: str,
    is_shard: Callable[[Path, CorpusName], bool],
    *,
    sharded: bool = False,
) -> str:
    """Return the path or pattern that the path of a corpus means.

    A pattern, a file or folder that exists, and a path that ends with a slash mean
    themselves. A plain name with neither file nor shards also means itself, or
    `t_*.rox` for a `sharded` write, which may make several shards. `is_shard` gets
    a file that has the name of a shard, and returns whether the file is a shard of the
    corpus.

    Raises:
        ShardError: The file and the shards exist.
    """
    path = Path(filepath)
    if is_pattern(filepath) or is_folder(filepath) or os.path.lexists(path):
        return filepath
    single = path.with_name(path.name.removesuffix(SUFFIX) + SUFFIX)
    several = corpus_name(str(path.with_name(f"{single.stem}_*{SUFFIX}")))
    names = names_in(path.parent) if path.parent.is_dir() else []
    has_several = several.manifest is not None and several.manifest.name in names
    has_several = has_several or any(
        is_shard(each, several) for each in _numbered(several)
    )
    if single.name not in names:
        return several.pattern if has_several or sharded else filepath
    if has_several:
        raise ShardError(
            f'{filepath}: may mean the file "{single.name}" or the shards '
            f'"{Path(several.pattern).name}"; pass one of these names'
        )
    return str(single)


def old_shards(filepath: str) -> list[str]:
    """Return the shards of the first Roxxel that a path means, in natural order.

    A plain name `t` or `t.rox` means the numbered shards, and no other `t_*.rox`.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: The file and the shards exist.
    """
    meant = resolved(filepath, lambda _path, _several: True)
    if meant == filepath or not is_pattern(meant):
        return matching_files(meant)
    return visible(_numbered(corpus_name(meant))) or matching_files(meant)


def _numbered(several: CorpusName) -> Iterator[Path]:
    """Yield the files that have names of numbered shards."""
    names = names_in(several.folder) if several.folder.is_dir() else []
    yield from (several.folder / name for name in filter(several.is_numbered, names))
