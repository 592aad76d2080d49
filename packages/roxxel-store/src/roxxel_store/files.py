"""Files on a local disk: found, read, and written whole or not at all.

Opening a named pipe waits for a writer, and a device may have no end. So whatever reads
a file by a path that somebody gave opens the file here. `matches_of` finds what a
pattern such as `wiki_*.rox` names, in order. `in_parallel` works on many files or
objects at the same time.

An `Output` writes every file that appears under its name as a whole: shards, manifests,
columns, copies of a cache, records of a run, exports and reports. The file has a hidden
draft name until it is flushed to the disk, and is then renamed. So a visible file is
complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import sys
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, Self, TypeVar

from roxxel_store.urls import below_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from types import TracebackType

MAX_BYTES = 1 << 28
"""Maximum size of a record; the manifest of 100 000 shards has 19 million bytes."""

DRAFT_SUFFIX = ".partial"
THREADS = 16
"""Files or objects on which `in_parallel` works at the same time."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
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


class Output:
    """A new file. After an error or an interrupt, every further write raises.

    If a `with` block ends without `publish` or `rename`, the output removes the draft.
    `draft` is a path that no other output uses; this output removes it in the end. For
    None, the output makes a draft of its own.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "whole.txt")
        ...     with Output(path) as output:
        ...         output.write(b"all of it")
        ...         there_before = path.exists()
        ...         output.publish()
        ...     (there_before, path.read_bytes())
        (False, b'all of it')
    """

    def __init__(self, path: Path, draft: Path | None = None) -> None:
        self._path = path
        self._is_broken = False
        self._is_named = False
        try:
            check_output(path)
            self.draft = _new_draft(path) if draft is None else draft
            self._file = self.draft.open("wb", buffering=0)
        except OSError as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            if error.filename is None:
                raise
            raise OSError(error.errno, error.strerror, str(path)) from error

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        with self.unless_broken(), self._named(), memoryview(data) as rest:
            start = 0
            while start < len(rest):
                start += self._file.write(rest[start:])

    def finish(self) -> None:
        """Flush the draft to the disk and close it."""
        with self.unless_broken(), self._named():
            if not self._file.closed:
                sync_file(self._file.fileno())
                self._file.close()

    def rename(self) -> None:
        """Finish the draft and rename it to the file; a second call does nothing."""
        if self._is_named:
            return
        self.finish()
        with self.unless_broken(), self._named():
            self.draft.replace(self._path)
            self._is_named = True

    def publish(self) -> None:
        """Rename the draft, and flush the folder to the disk."""
        self.rename()
        sync_folder(self._path.parent)

    def abort(self) -> None:
        """Close the draft, and remove it unless it was renamed to the file."""
        self._is_broken = True
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._is_named:  # Another writer may already use a renamed draft's name.
            with contextlib.suppress(OSError):
                self.draft.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()

    @contextlib.contextmanager
    def unless_broken(self) -> Generator[None]:
        """Run the block. After an error in it, every further write raises."""
        if self._is_broken:
            raise OSError(
                f"{self._path}: an earlier write failed, so this file cannot be "
                "completed; write it again"
            )
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    @contextlib.contextmanager
    def _named(self) -> Generator[None]:
        """Add the file's name to each OSError that the block raises."""
        try:
            yield
        except OSError as error:
            remedy = "make room and write" if is_full(error) else "write it"
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}; the new file was discarded, so "
                f"{remedy} again",
                str(self._path),
            ) from error


@contextlib.contextmanager
def published(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Yield a hidden file; rename it to `path` at the end, or remove it on error.

    The file is flushed to the disk before the rename, and an older file at `path`
    stays until then.

    Args:
        path: The file to write; see `check_output`.

    Raises:
        OSError: `path` cannot hold a file, or the disk refuses the file.

    Example:
        >>> from pathlib import Path
        >>> with published("new.txt") as file:
        ...     file.write(b"text")
        4
        >>> Path("new.txt").read_text()
        'text'
    """
    path = Path(path)
    check_output(path)
    draft = draft_path(path, secrets.token_hex(4))
    try:
        with Output(path, draft) as output:
            with draft.open("r+b") as file:
                yield file
            output.publish()
    except OSError as error:
        # An error that names another file comes from reading what is written here.
        if error.filename in {None, str(draft), str(path)}:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{path}: cannot be written ({reason}); make room, or write elsewhere"
            ) from error
        raise


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Replace a small file atomically, and flush it to the disk.

    `draft` is the name of the hidden file, for a folder with a single writer.
    """
    with Output(path, draft) as output:
        output.write(data)
        output.publish()


def swap_file(path: Path, data: bytes, before: bytes | None) -> bool:
    """Replace a small file if it still holds `before`; call this with a lock held.

    Args:
        path: The file.
        data: The new content.
        before: The content that this program has read; None for no such file.

    Returns:
        Whether it was replaced; False if it holds something else.

    Raises:
        FileNotFoundError: The file is gone.
        OSError: The disk refuses the file.
    """
    try:
        found = read_file(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        if before is not None:
            raise FileNotFoundError(*error.args) from error
        found = None
    if found != before:
        return False
    replace_file(path, data, draft_path(path))
    return True


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise an OSError unless a file can be written at a path.

    The path must be a regular file, or a new name in a folder that exists.

    A rename would replace a device, a pipe or a link. So call this before long work
    whose result goes to `path`.

    Args:
        path: The file to write.

    Raises:
        OSError: The path is a folder, a link or a device, or its folder does not exist.

    Example:
        >>> check_output("new.txt")
        >>> check_output("/dev/null")
        Traceback (most recent call last):
        OSError: /dev/null: is not a regular file; name a file to write
    """
    path = Path(path)
    if path.is_symlink():
        raise OSError(f"{path}: is a link; name a file to write, not a link to it")
    if path.is_dir():
        raise OSError(f"{path}: is a folder; name a file to write")
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: is not a regular file; name a file to write")
    if not path.parent.is_dir():
        raise OSError(
            f"{path}: its folder does not exist; make it, or name a file in another "
            "folder"
        )


def is_full(error: Exception | None) -> bool:
    """Return whether an error says that a disk, a quota or a file has no room."""
    return isinstance(error, OSError) and error.errno in _FULL


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


def _new_draft(path: Path) -> Path:
    """Create a draft that no other writer uses, and return its path."""
    while not _claim(draft := draft_path(path, secrets.token_hex(4))):
        pass
    return draft


def _claim(path: Path) -> bool:
    """Create an empty file atomically; return False if the name is taken."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True
