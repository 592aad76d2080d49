"""Which corpus a plain name means: a path without a star that does not exist.

`t` and `t.rox` mean the shards `t_*.rox`, and `t` also means the file `t.rox`, if these
exist. File names alone do not tell: `t_20240101.rox` may be a corpus of one file, or a
file of another program. If there is no manifest, the caller checks the files.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_format._store.corpus_name import SUFFIX, corpus_name
from roxxel_format._store.local import names_in
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_format._store.corpus_name import CorpusName


def resolved(
    filepath: str,
    is_shard: Callable[[Path, CorpusName], bool] | None = None,
    *,
    sharded: bool = False,
) -> str:
    """Return the path or pattern that the path of a corpus means.

    A pattern, and a file or folder that exists, mean themselves. So does a plain name
    that means nothing else, but `t.rox` means `t_*.rox` for a `sharded` write, whose
    shards may be several. `is_shard` returns whether a file with the name of a shard is
    a shard of a corpus. Default: always.

    Raises:
        ShardError: The file and the shards exist.
    """
    path = Path(filepath)
    if glob.has_magic(filepath) or os.path.lexists(path):
        return filepath
    single = path.with_name(path.name.removesuffix(SUFFIX) + SUFFIX)
    several = corpus_name(str(path.with_name(f"{single.stem}_*{SUFFIX}")))
    names = names_in(path.parent) if path.parent.is_dir() else []
    numbered = (several.folder / name for name in names if several.is_numbered(name))
    has_several = several.manifest is not None and several.manifest.name in names
    has_several = has_several or any(
        is_shard is None or is_shard(each, several) for each in numbered
    )
    if single.name not in names:
        is_pattern = has_several or (sharded and path == single)
        return several.pattern if is_pattern else filepath
    if has_several:
        raise ShardError(
            f'{filepath}: may mean the file "{single.name}" or the shards '
            f'"{Path(several.pattern).name}"; pass one of these names'
        )
    return str(single)
