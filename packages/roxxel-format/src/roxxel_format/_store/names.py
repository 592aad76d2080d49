"""Which files a corpus is, and the names that new shards of it get."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from roxxel_format._store.local import DRAFT_SUFFIX as PARTIAL_SUFFIX
from roxxel_format._store.local import draft_path as partial_path
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OnePath: TypeAlias = "str | os.PathLike[str]"
Filepath: TypeAlias = "OnePath | Sequence[OnePath]"

SUFFIX = ".rox"
_DIGITS = re.compile(r"([0-9]+)")
_NUMBERED = re.compile(r"(.*?)([0-9]{5,})([^0-9]*)")


def absolute(filepath: Filepath) -> str | tuple[str, ...]:
    """Return the path or paths, independent of the working folder; touches no file.

    Raises:
        TypeError: It is no path, and no list of paths.
        ValueError: A path is empty.
    """
    # As os.PathLike tells it, which is slow when it is first asked.
    if isinstance(filepath, str) or hasattr(type(filepath), "__fspath__"):
        return _absolute_path(cast("OnePath", filepath))
    try:
        return tuple(
            _absolute_path(path) for path in cast("Sequence[OnePath]", filepath)
        )
    except TypeError:
        raise TypeError(
            f"filepath is {filepath!r}; pass a path, a pattern, or a list of them"
        ) from None


def find_shards(filepath: str | tuple[str, ...]) -> list[str]:
    """Return the shards of a corpus in order.

    A folder stands for its `*.rox`. Names are in natural order: a number counts as a
    number, so shard 100000 follows shard 99999 on every host.

    Raises:
        FileNotFoundError: There is none.
        ShardError: The name stands for the shards that were written by it, and for
            others too.
    """
    if isinstance(filepath, tuple):
        if not filepath:
            raise FileNotFoundError("the list of shards is empty; name at least one")
        return [path for each in filepath for path in find_shards(each)]
    # pathlib would take four times as long.
    if filepath.endswith(SUFFIX) and os.path.isfile(filepath):  # noqa: PTH113
        return [filepath]  # one shard, and neither a folder nor a pattern
    found = _matching(filepath)
    _check_one_corpus(filepath, found)
    return found


def _matching(filepath: str) -> list[str]:
    path = Path(filepath)
    if path.is_dir():
        found = _visible(path.glob("*" + SUFFIX))
        if not found:
            raise FileNotFoundError(
                f"{path}: the folder holds no {SUFFIX} file; write a corpus there, "
                "or check the path"
            )
        return found
    if path.exists():
        return [filepath]
    if not glob.has_magic(filepath):
        raise FileNotFoundError(
            f"{path}: no such file or folder; write the corpus first, or check the path"
        )
    # A folder that exists is meant, whatever brackets its name has.
    base = path.parent
    while not base.is_dir():
        base = base.parent
    found = _visible(base.glob(str(path.relative_to(base))))
    if not found:
        raise FileNotFoundError(
            f"{path}: no file matches the pattern; write the corpus first, or check "
            "the path"
        )
    return found


def _check_one_corpus(filepath: str, found: Sequence[str]) -> None:
    """Check that a name which was written to does not match another corpus as well.

    `wiki_*.rox` also matches `wiki_en_00000.rox`, and a folder all that lies in it.
    """
    place = numbered_place(filepath)
    if place is None:
        return
    names = [Path(path).name for path in found]
    ours = [name for name in names if place.number(name) is not None]
    others = [name for name in names if place.number(name) is None]
    if ours and others:
        raise ShardError(
            f"{filepath}: holds {ours[0]} and {len(ours) - 1} more shards that were "
            f"written by this name, and {others[0]} and {len(others) - 1} more that "
            f'were not; pass "{place.prefix}[0-9]*{place.suffix}" for the former, a '
            "list of patterns for both, or keep each corpus in a folder of its own"
        )


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Return a sort key in which runs of digits compare as numbers."""
    # Every second part is a run of digits.
    return [
        (1, int(part), part) if index % 2 else (0, 0, part)
        for index, part in enumerate(_DIGITS.split(path))
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a corpus is written.

    Attributes:
        folder: Holds the shards.
        prefix: Of each name, before the number.
        suffix: Of each name, behind the number.
        single: The corpus is one file, `prefix + suffix`, without a number.
    """

    folder: Path
    prefix: str
    suffix: str
    single: bool = False

    def shard(self, number: int) -> Path:
        """Return the path of a shard."""
        if self.single:
            return self.folder / (self.prefix + self.suffix)
        return self.folder / f"{self.prefix}{number:05d}{self.suffix}"

    def partial(self, number: int) -> Path:
        """Return the hidden path under which a shard grows."""
        return partial_path(self.shard(number))

    @property
    def pattern(self) -> str:
        """What names the corpus in a message."""
        return str(self.folder / f"{self.prefix}*{self.suffix}")

    @property
    def lock(self) -> Path:
        """The file that writers lock."""
        star = "" if self.single else "%"
        return self.folder / f".{self.prefix}{star}{self.suffix}.lock"

    @property
    def replacing(self) -> Path:
        """The file that says: shards of an old corpus and of a new one are mixed."""
        return self.lock.with_suffix(".replacing")

    def number(self, name: str) -> int | None:
        """Return the number in a shard's name, None where it is no name of ours."""
        if self.single:
            return 0 if name == self.prefix + self.suffix else None
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        digits = name[len(self.prefix) : len(name) - len(self.suffix)]
        if not re.fullmatch("[0-9]{5,}", digits):
            return None
        return int(digits) if self.shard(int(digits)).name == name else None

    def shards(self) -> dict[int, Path]:
        """Return the finished shards by number."""
        return self._named(lambda name: name)

    def partials(self) -> dict[int, Path]:
        """Return the unfinished files of writers that are at work or were killed."""
        return self._named(_published_name)

    @property
    def parts(self) -> Path:
        """The folder in which a corpus is prepared from many files."""
        return self.lock.with_suffix(".parts")

    def leftovers(self) -> list[Path]:
        """Return all files that are here only while writers are at work."""
        found = list(self.partials().values())
        found += [path for path in (self.lock, self.parts) if path.exists()]
        return found

    def _named(self, published: Callable[[str], str]) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        found: dict[int, Path] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                number = self.number(published(entry.name))
                if number is not None:
                    found[number] = self.folder / entry.name
        return dict(sorted(found.items()))


def place_to_write(filepath: str | tuple[str, ...]) -> Place:
    """Return where a path means its shards to be written.

    `dir/wiki_*.rox` and `dir/wiki_[0-9]*.rox` give numbered shards, `dir/wiki.rox` one
    file, and a folder numbered shards named `shard_*.rox` in it.

    Raises:
        TypeError: It is a list.
        ValueError: A pattern with more than one `*` or other wildcards.
    """
    if isinstance(filepath, tuple):
        raise TypeError(
            f"a list of {len(filepath)} paths cannot be written to; "
            'use a file, a folder, or a pattern such as "wiki_*.rox"'
        )
    path = Path(filepath)
    if glob.has_magic(filepath) and not path.exists():
        in_folder = glob.has_magic(str(path.parent)) and not path.parent.is_dir()
        name = path.name.replace("[0-9]*", "*")
        if in_folder or not re.fullmatch(r"[^*?\[\]]*\*[^*?\[\]]*", name):
            raise ValueError(
                f"{filepath}: only one * in the last part of the path can be written "
                'to; use a pattern such as "wiki_*.rox"'
            )
        prefix, suffix = name.split("*")
        return Place(path.parent, prefix, suffix or SUFFIX)
    if path.is_dir() or path.suffix != SUFFIX:
        return Place(path, "shard_", SUFFIX)
    return Place(path.parent, path.name[: -len(SUFFIX)], SUFFIX, single=True)


def numbered_place(filepath: str) -> Place | None:
    """Return where a path writes numbered shards, None where it does not."""
    try:
        place = place_to_write(filepath)
    except ValueError:
        return None
    return None if place.single else place


def place_of(path: str) -> Place | None:
    """Return where the write of a numbered shard put it, None for other names."""
    folder, name = os.path.split(path)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    place = Place(Path(folder), match[1], match[3])
    return None if place.number(name) is None else place


def _published_name(name: str) -> str:
    """Return what a partial file will be called, or an impossible name."""
    is_partial = name.startswith(".") and name.endswith(PARTIAL_SUFFIX)
    return name[1 : -len(PARTIAL_SUFFIX)] if is_partial else ""


def _absolute_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text:
        raise ValueError('filepath is empty; pass "." for this folder')
    is_posix = type(text) is str and text.startswith("/") and os.name == "posix"
    if is_posix and "//" not in text and "/." not in text:
        return text.rstrip("/") or "/"  # what pathlib gives, in a tenth of its time
    return str(Path(path).absolute())


def _visible(paths: Iterable[Path]) -> list[str]:
    """Return the paths in order, without hidden files (unfinished shards are)."""
    found = [str(path) for path in paths if not path.name.startswith(".")]
    return sorted(found, key=natural_key)
