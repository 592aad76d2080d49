"""Names, content, drafts and flushes of files on a local disk.

A file has a hidden draft name until it is flushed to the disk, and is then renamed
(`output`). So a visible file is complete.

Opening a named pipe waits for a writer, and a device may have no end. So whatever reads
a file by a path that somebody gave opens the file here.

`matches_of` finds what a pattern such as `wiki_*.rox` names, in order. `in_parallel`
works on many files or objects at the same time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from roxxel_store.urls import below_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

DRAFT_SUFFIX = ".partial"
THREADS = 16
"""Files or objects on which `in_parallel` works at the same time."""
_WILDCARD = re.compile(r"[*?[]")
_DIGITS = re.compile(r"([0-9]+)")
_DRAFT = re.compile(rf"\.(.*?)(?:~[0-9a-f]{{8}})?{re.escape(DRAFT_SUFFIX)}", re.DOTALL)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_REMEDY = "check the path"
POINTER_BYTES = 1024
"""Git LFS treats no larger file as a pointer."""
_POINTER = re.compile(
    rb"version https?://(?:git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/.*\n"
    rb"(?:ext-.*\n)*oid [a-z0-9]+:[0-9a-f]+\r?\nsize [0-9]+\s*"
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(
    act: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = THREADS
) -> list[_Result]:
    """Call `act` with every item on several threads; return the results in order.

    After the first error it starts no further item, and raises that error.

    Example:
        >>> in_parallel(len, ["a", "bc"])
        [1, 2]
    """
    # Imported here because it loads logging, which reading does not need.
    from concurrent.futures import ThreadPoolExecutor

    waiting = list(items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="roxxel-files")
    try:
        futures = [pool.submit(act, item) for item in waiting]
    except RuntimeError:  # an interpreter that is shutting down starts no threads
        return [act(item) for item in waiting]
    else:
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def mode_of(path: Path) -> int | None:
    """Return type and permissions of a path; None if there is nothing.

    `Path.exists` and `Path.is_dir` hide some errors of a disk: a file that cannot be
    reached would seem absent.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_no_pointer(
    path: str | os.PathLike[str],
    head: bytes,
    error: Callable[[str], Exception] = ValueError,
) -> None:
    """Raise an error for a file that Git LFS has not fetched.

    Git leaves such a pointer, a short text, in place of each large file of a repository
    that was cloned without Git LFS.

    Args:
        path: The file, for the message.
        head: The first `POINTER_BYTES` of the file, or more of them.
        error: Class of the error.

    Example:
        >>> check_no_pointer("a.txt", b"version 2")
    """
    if _POINTER.fullmatch(head):
        raise error(
            f"{os.fspath(path)}: is a pointer of Git LFS, which stands where the file "
            "should be; run `git lfs pull` in its repository"
        )


def open_file(
    path: str | os.PathLike[str],
    error: Callable[[str], Exception] = ValueError,
    remedy: str = _REMEDY,
) -> int:
    """Open a regular file for reading and return its descriptor.

    Does not wait for the writer of a pipe.

    Args:
        path: The file.
        error: Class of the error for a path that is no regular file.
        remedy: What the message tells the reader to do.

    Raises:
        ValueError: The path is a folder, a pipe or a device, or the file is a pointer
            of Git LFS. An `error` is raised instead.
        OSError: The file is missing, or cannot be opened.
    """
    fd = os.open(path, _FLAGS)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise error(f"{os.fspath(path)}: is {kind}, not a regular file; {remedy}")
    if status.st_size <= POINTER_BYTES:
        try:
            check_no_pointer(path, os.pread(fd, POINTER_BYTES, 0), error)
        except BaseException:
            os.close(fd)
            raise
    return fd


def read_file(
    path: str | os.PathLike[str],
    max_bytes: int,
    error: Callable[[str], Exception] = ValueError,
    remedy: str = _REMEDY,
) -> bytes:
    """Return the content of a regular file of at most `max_bytes` bytes.

    The size is checked before the file is read. See `open_file` for the arguments and
    the errors; a file that is too large raises `error` too.
    """
    with os.fdopen(open_file(path, error, remedy), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return file.read(size)
    raise error(
        f"{os.fspath(path)}: has {size} bytes, more than the limit of {max_bytes}; "
        f"{remedy}"
    )


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; [] if the folder does not exist."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except FileNotFoundError:
        return []


def matches_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files and folders below a folder that match a pattern, unsorted.

    The pattern means what it means in `Path.glob`, and `**/*` is everything. Use it
    wherever a file that is not found would be lost: `Path.glob` and `Path.rglob` pass
    over a folder that may not be read.

    Raises:
        OSError: A folder cannot be listed.
    """
    parts = PurePath(pattern).parts
    if parts[-1] == "**":
        parts = (*parts, "*")
    return [*dict.fromkeys(_matches(folder, parts))]


def _matches(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    first, *others = parts
    rest = tuple(others)
    if first == "**":
        yield from _matches(folder, rest)
        for each in _entries(folder):
            if each.is_dir(follow_symlinks=False):
                yield from _matches(folder / each.name, parts)
        return
    if _WILDCARD.search(first):
        found = [
            folder / each.name
            for each in _entries(folder)
            if fnmatchcase(each.name, first) and (not rest or each.is_dir())
        ]
    else:
        path = folder / first
        found = [path] if _exists(path, is_folder=bool(rest)) else []
    for path in found:
        if rest:
            yield from _matches(path, rest)
        else:
            yield path


def matches_of(pattern: str) -> tuple[str, list[str]]:
    """Return the folder in which a pattern begins, and what matches it.

    The matches are the visible files and folders, in natural order.
    """
    folder, rest = below_folder(pattern)
    return str(folder), visible(matches_in(folder, rest))


def visible(paths: Iterable[Path]) -> list[str]:
    """Return the visible paths in natural order."""
    return in_natural_order(
        str(path) for path in paths if not path.name.startswith(".")
    )


def in_natural_order(paths: Iterable[str]) -> list[str]:
    """Return paths, sorted; digits in names compare as numbers.

    Example:
        >>> in_natural_order(["a_10", "a_9"])
        ['a_9', 'a_10']
    """

    def key(path: str) -> tuple[list[int | str], str]:
        # Every second part is a run of digits.
        parts = enumerate(_DIGITS.split(path))
        return [int(part) if index % 2 else part for index, part in parts], path

    return sorted(paths, key=key)


def _exists(path: Path, *, is_folder: bool) -> bool:
    """Return whether a file or folder exists; `Path.exists` hides other errors."""
    mode = mode_of(path)
    return mode is not None and (stat.S_ISDIR(mode) or not is_folder)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except FileNotFoundError:  # another program may have removed it meanwhile
        return []


def draft_path(path: Path, writer: str = "") -> Path:
    """Return the hidden path of a file's draft.

    `writer`, eight hexadecimal digits, distinguishes drafts of several writers. It is
    empty for the draft that claims or locks the file's name.
    """
    mark = f"~{writer}" if writer else ""
    return path.with_name(f".{path.name}{mark}{DRAFT_SUFFIX}")


def drafted_name(name: str) -> str | None:
    """Return the final name of a draft; None for other names."""
    match = _DRAFT.fullmatch(name)
    return match[1] if match else None


def sync_file(fd: int) -> None:
    """Flush a file or folder to the disk.

    On macOS, fsync leaves the bytes in the cache of the drive; F_FULLFSYNC flushes this
    cache too. On file systems without F_FULLFSYNC (network shares), use fsync.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless they exist, and flush their names.

    Raises:
        OSError: The path is no folder, or no folder can be made here.
    """
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk.

    Does nothing on a file system that cannot flush a folder.
    """
    _sync(folder)


def sync_tree(folder: Path) -> None:
    """Flush a folder and all that it holds to the disk, whoever wrote it."""
    for path in [*matches_in(folder, "**/*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        sync_file(fd)
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.EINVAL}:
            raise
    finally:
        os.close(fd)


def claim(path: Path) -> bool:
    """Create an empty file atomically; return False if the name is taken."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True
