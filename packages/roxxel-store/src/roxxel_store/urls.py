"""A path that a user gave: a URL of a bucket or web server, or a path on a disk.

`url_of` decides which of the two it is, and checks the URL. `expanded` finds the home
folder in a path. `located` and `absolute` do both. Call one of them where the path
enters a package, once. `is_pattern` tells a pattern from the name of a file.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    OnePath: TypeAlias = str | os.PathLike[str]

SCHEMES = ("s3", "gs", "az", "https", "http")
DEFAULT_TIMEOUT_S = 60.0
"""Seconds after which a request fails, unless the caller chooses."""

_BUCKET = re.compile(r"[A-Za-z0-9._-]*")
_HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_EXAMPLE = "s3://bucket/wiki_*.rox"


class UrlError(ValueError):
    """A text is no URL that can be used here; the message says what to give.

    Example:
        >>> try:
        ...     url_of("s3://bucket")
        ... except UrlError as error:
        ...     print(str(error).partition(";")[0])
        s3://bucket: names no object or folder in a bucket
    """


def url_of(
    path: str | os.PathLike[str], name: str = "", example: str = _EXAMPLE
) -> str | None:
    """Return the URL that a user gave, checked; None for a path on a disk.

    Args:
        path: A path or a URL.
        name: The argument that holds the path, for messages.
        example: A good URL, for messages.

    Raises:
        TypeError: It is neither a text nor a path.
        UrlError: As for `checked_url`, or `pathlib` has turned a URL into a path.

    Example:
        >>> url_of("s3://bucket/wiki/"), url_of("/data/wiki/")
        ('s3://bucket/wiki', None)
    """
    if not isinstance(cast("object", path), str | os.PathLike):
        raise TypeError(f"{name or 'the path'} is {path!r:.50}; pass a path or a URL")
    text = os.fspath(path)
    if is_url(text):
        return checked_url(text, example)
    if _has_lost_slash(text):
        scheme, _, rest = text.partition(":/")
        given = f"{name}={text!r}" if name else text
        raise UrlError(
            f"{given}: is a URL that has lost a slash, as in `pathlib.Path`; give "
            f"{scheme}://{rest.lstrip('/')} as text"
        )
    return None


def bucket_url(path: str | os.PathLike[str], name: str = "") -> str | None:
    """Return the URL of a folder that programs write; None for a path on a disk.

    Args:
        path: A path or a URL.
        name: The argument that holds the path, for messages.

    Raises:
        TypeError: It is neither a text nor a path.
        ValueError: The text is empty.
        UrlError: The URL is of a web server, or as for `url_of`.

    Example:
        >>> bucket_url("s3://bucket/run/"), bucket_url("runs/first")
        ('s3://bucket/run', None)
    """
    if path == "":
        raise ValueError(f'{name or "the path"} is empty; pass "." for this folder')
    url = url_of(path, name, "s3://bucket/run/checkpoints")
    if url is not None and url.startswith(("http://", "https://")):
        raise UrlError(
            f"{url}: a web server cannot hold checkpoints; give a path, or a URL that "
            "begins with s3://, gs:// or az://"
        )
    return url


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path on a disk; a first part `~` or `~NAME` becomes a home folder.

    A folder whose own name begins with `~` keeps its name. `Path.expanduser` would
    raise an error for it.

    Example:
        >>> expanded("~no such user/data").as_posix()
        '~no such user/data'
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def located(path: str | os.PathLike[str], name: str = "") -> Path | str:
    """Return what a user gave: a checked URL as text, or an expanded path.

    Raises:
        UrlError: As for `url_of`.

    Example:
        >>> located("s3://bucket/wiki/"), located("data") == Path("data")
        ('s3://bucket/wiki', True)
    """
    return url_of(path, name) or expanded(path)


@overload
def absolute(path: OnePath, name: str = "") -> str: ...
@overload
def absolute(
    path: OnePath | Sequence[OnePath], name: str = ""
) -> str | tuple[str, ...]: ...
def absolute(
    path: OnePath | Sequence[OnePath], name: str = ""
) -> str | tuple[str, ...]:
    """Return the text that names the same place from any working directory.

    A slash at the end stays, because it marks a folder even if none exists. For several
    paths, returns one text for each.

    Raises:
        TypeError: It is neither a path nor several.
        ValueError: A path is empty.
        UrlError: As for `url_of`.

    Example:
        >>> absolute("s3://bucket/wiki/"), absolute(["/data/a", "/data/b/"])
        ('s3://bucket/wiki', ('/data/a', '/data/b/'))
    """
    if not isinstance(path, (str, os.PathLike)):
        try:
            return tuple(absolute(each, name) for each in path)
        except TypeError:
            raise TypeError(
                f"{name or 'filepath'} is {path!r}; pass a path, a pattern, or a list "
                "of them"
            ) from None
    if not os.fspath(path):
        raise ValueError(f'{name or "filepath"} is empty; pass "." for this folder')
    place = located(path, name)
    if isinstance(place, str):
        return place
    text = str(place.absolute())
    is_folder = os.fspath(path).endswith("/") and not text.endswith("/")
    return f"{text}/" if is_folder else text


def is_pattern(filepath: str) -> bool:
    """Return whether a path is a pattern, not the name of a file or folder.

    Brackets in the name of an existing file or folder are not a pattern.

    Example:
        >>> is_pattern("wiki_*.rox"), is_pattern("wiki.rox")
        (True, False)
    """
    return glob.has_magic(filepath) and glob.has_magic(below_folder(filepath)[1])


def below_folder(filepath: str) -> tuple[Path, str]:
    """Return the deepest existing folder of a path, and the rest of the path.

    Example:
        >>> below_folder(f"{Path.cwd()}/none/wiki_*.rox")[1]
        'none/wiki_*.rox'
    """
    path = Path(filepath)
    if os.path.lexists(path):
        return path, ""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    return folder, str(path.relative_to(folder))


def is_url(text: str) -> bool:
    """Return whether a text is a URL and not a path.

    Example:
        >>> is_url("s3://bucket/wiki/"), is_url("/data/wiki/")
        (True, False)
    """
    return _URL.match(text) is not None


def _has_lost_slash(text: str) -> bool:
    """Return whether `pathlib` has made a path of a URL, such as `s3:/bucket/wiki`."""
    return text.startswith(tuple(f"{scheme}:/" for scheme in SCHEMES))


def check_on_disk(
    path: str,
    remedy: str | Callable[[], str],
    error: Callable[[str], Exception] = UrlError,
) -> None:
    """Raise an error for a URL, where only a path on a disk can be used.

    Args:
        path: A path or a URL.
        remedy: What the message says after the URL: why, and what to do instead. May be
            a function that returns it.
        error: Class of the error.

    Example:
        >>> check_on_disk("/data/a.bin", "copy it to a disk first")
    """
    if is_url(path) or _has_lost_slash(path):
        said = remedy if isinstance(remedy, str) else remedy()
        raise error(f"{path}: {said}")


def check_writable(url: str) -> None:
    """Raise UrlError for the URL of a web server."""
    if url.startswith(("http://", "https://")):
        raise UrlError(
            f"{url}: a web server is read-only; write to a folder on a disk, or to a "
            "bucket (s3://, gs://, az://)"
        )


def checked_url(url: str, example: str = _EXAMPLE) -> str:
    """Return a URL that names an object, a pattern or a folder.

    `example` is a good URL, for messages.

    Raises:
        UrlError: The scheme is unknown, the key is missing, or the URL has a query or
            a password. The message leaves these out.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise UrlError(
            f"{scheme[:20]}://: unknown kind of URL; known kinds are {known}"
        )
    host, _, key = rest.partition("/")
    # A password may hold slashes, so nothing of a suspicious URL is shown.
    is_host = _HOST if scheme in {"http", "https"} else _BUCKET
    if not is_host.fullmatch(host) or "?" in key or "#" in key:
        raise UrlError(
            f"{scheme}://...: the URL has a password, a query, a fragment, or a "
            "character that no bucket's name has; remove it, and pass credentials in "
            "the environment"
        )
    if not host or not key.strip("/"):
        raise UrlError(
            f"{url}: names no object or folder in a bucket; pass a URL such as "
            f"{example}"
        )
    if not {"", ".", ".."}.isdisjoint(key.rstrip("/").split("/")):
        raise UrlError(
            f'{url}: has an empty part, "." or ".." in its path; write the path '
            "without it"
        )
    return url.rstrip("/")
