"""Objects in buckets, read and written by the client `obstore`.

Only this module imports `obstore`, which the extra `bucket` installs. The client takes
endpoint, region and credentials from the environment, for example `AWS_ENDPOINT_URL`; a
URL never holds a secret. Errors leave out the responses of the store, which may hold
secrets.

The client does not work in a process that was forked after its first request. Such a
process gets a CheckpointBucketError instead of a request that never ends.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from roxxel_store import find_google_problem, missing_extra

from roxxel_ckpt.errors import CheckpointBucketError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import ModuleType

    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")
# A process holds at most `_THREADS * _PARTS * _PART_BYTES` (256 MiB) of files that are
# being uploaded, and `_THREADS` blocks of 16 MiB that are being downloaded.
_THREADS = 16
_PARTS = 2
_PART_BYTES = 1 << 23
# Longest time of a request. All parts in flight share the uplink, so a shorter limit
# would fail on a slow uplink: 256 MiB in 100 s are 2.7 MB/s.
_REQUEST_S = 100.0
_DELETED_AT_ONCE = 1000
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_SETTINGS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS to a readable file of credentials",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_HTTP_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_ENDED = "the connection ended early; check the network, and try again later"
# Repeating a request of this module does no harm, not even a creation, because `create`
# compares the bytes.
_TRANSIENT = {"Timeout", "Connect", "Interrupted", "Request"}
_HTTP_REASONS = {
    "Timeout": "no answer within the time limit; check the network, or raise timeout",
    "Connect": "no connection; check the network, the endpoint, and the bucket's name",
    "Interrupted": _ENDED,
    "Request": _ENDED,
}
_REFUSED = "access was refused; check the credentials and the region in the environment"
_NO_BUCKET = "there is no such bucket; check the URL"
_Item = TypeVar("_Item")
_first_process: int | None = None
"""The process that sent the first request; a fork of it must not send any."""


class Listing(NamedTuple):
    """Names directly below a prefix: objects, and prefixes of further objects.

    Example:
        >>> Listing(["run.json"], ["checkpoints"]).objects
        ['run.json']
    """

    objects: list[str]
    prefixes: list[str]


class Version(NamedTuple):
    """What tells two versions of an object apart; a store uses one of the two.

    Example:
        >>> Version('"5d41"', None).mode()
        {'e_tag': '"5d41"'}
    """

    e_tag: str | None
    version: str | None

    def mode(self) -> dict[str, str]:
        """Return the condition that an object still has this version."""
        return {name: value for name, value in self._asdict().items() if value}


class Bucket:
    """The objects below one URL; names are relative to it.

    A request that fails for a temporary reason, such as status 503, is repeated with
    growing pauses for about a third of `timeout_s`. Every method raises a
    CheckpointBucketError if the store refuses, fails, or does not answer in time.

    Example:
        >>> Bucket("s3://bucket/run", timeout_s=60).url_of("run.json")
        's3://bucket/run/run.json'
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self._timeout_s = url, timeout_s
        scheme, _, rest = url.partition("://")
        self._scheme = scheme
        self._host, _, root = rest.partition("/")
        self._root = f"{root}/"

    def hasty(self) -> Bucket:
        """Return the same objects with a quarter of the time limit."""
        return Bucket(self.url, max(1.0, self._timeout_s / 4))

    def url_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}"

    def names(self, prefix: str = "") -> Listing:
        """List what is directly below a prefix, which is empty or ends in a slash."""
        found: Any = self._call(
            prefix, lambda c, s: c.list_with_delimiter(s, self._root + prefix)
        )
        start = len(self._root + prefix)
        return Listing(
            [meta["path"][start:] for meta in found["objects"]],
            [path[start:].rstrip("/") for path in found["common_prefixes"]],
        )

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every object below a prefix; the names lack the prefix."""
        start = len(self._root + prefix)

        def collect(client: ModuleType, store: ObjectStore) -> dict[str, int]:
            pages: Iterable[Any] = client.list(
                store, self._root + prefix, chunk_size=1000
            )
            return {
                meta["path"][start:]: meta["size"] for page in pages for meta in page
            }

        return self._call(prefix, collect)

    def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
        """Return the bytes `[start, stop)` of an object, or the whole object.

        Raises:
            FileNotFoundError: There is no such object.
        """
        options: Any = {} if span is None or span[0] == span[1] else {"range": span}

        def read(client: ModuleType, store: ObjectStore) -> bytes:
            answer = client.get(store, self._root + name, options=options)
            return bytes(answer.bytes())

        return self._call(name, read)

    def read_version(self, name: str) -> tuple[bytes, Version]:
        """Return the bytes of an object, and their version.

        Raises:
            FileNotFoundError: There is no such object.
        """

        def read(client: ModuleType, store: ObjectStore) -> tuple[bytes, Version]:
            answer = client.get(store, self._root + name)
            return bytes(answer.bytes()), _version(answer.meta)

        return self._call(name, read)

    def replace(
        self, name: str, data: bytes, version: Version | None
    ) -> Version | None:
        """Write an object if it has a version; for None, if it does not exist.

        A request whose response was lost is repeated, so a refusal does not prove that
        another program wrote the object.

        Returns:
            The new version, or None if the store refuses because the object has another
            version.

        Raises:
            FileNotFoundError: The object, or the bucket, does not exist.
            CheckpointBucketError: The request failed; it may still take effect.
        """
        mode: Any = "create" if version is None else version.mode()

        def put(client: ModuleType, store: ObjectStore) -> Version | None:
            exceptions = client.exceptions
            try:
                return _version(client.put(store, self._root + name, data, mode=mode))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return None

        return self._call(name, put)

    def write_file(self, name: str, path: Path) -> None:
        """Write an object from a file, in parts if the file is large."""
        self._call(
            name,
            lambda c, s: c.put(
                s,
                self._root + name,
                path,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS,
            ),
        )

    def create(self, name: str, data: bytes) -> None:
        """Create an object; an existing object is never changed.

        The response to a request may be lost. So if an object with the same bytes
        exists, it counts as created by this call.

        Raises:
            FileExistsError: An object with other bytes exists.
        """
        try:
            self._call(
                name, lambda c, s: c.put(s, self._root + name, data, mode="create")
            )
        except FileExistsError:
            if self.read(name) != data:
                raise

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; objects that do not exist are not an error."""
        keys = [self._root + name for name in names]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[first : first + _DELETED_AT_ONCE]
            try:
                self._call("", lambda c, s, some=some: c.delete(s, some))
            except FileNotFoundError:  # GCS and Azure refuse what S3 accepts
                for key in some if len(some) > 1 else ():
                    self.delete([key.removeprefix(self._root)])

    def _call(
        self, name: str, request: Callable[[ModuleType, ObjectStore], _Item]
    ) -> _Item:
        client = checked_client()
        _check_process()
        url, deadline_s = self.url_of(name), time.monotonic() + self._timeout_s / 3
        store = self._store(client, url)
        pause_s = min(0.1, self._timeout_s / 30)
        while True:
            try:
                return request(client, store)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise CheckpointBucketError(f"{url}: {_NO_BUCKET}") from None
                raise FileNotFoundError(f"{url}: there is no such object") from None
            except client.exceptions.AlreadyExistsError:
                raise FileExistsError(f"{url}: exists already") from None
            except client.exceptions.BaseError as error:
                # If the connection of a creation or a deletion fails, the client gives
                # up at once.
                if _is_transient(error) and time.monotonic() + pause_s < deadline_s:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, self._timeout_s / 12)
                    continue
                # The message of the client may hold parts of the response.
                raise CheckpointBucketError(f"{url}: {_reason(error)}") from None
            except ValueError:
                raise CheckpointBucketError(
                    f"{url}: the client cannot use this name; rename the variable of "
                    "this path, or the folder"
                ) from None

    def _store(self, client: ModuleType, url: str) -> ObjectStore:
        name, endpoint = _endpoint(self._scheme)
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise CheckpointBucketError(
                f"{url}: the environment variable {name} is not the URL of a server; "
                "begin it with http:// or https://"
            )
        problem = find_google_problem() if self._scheme == "gs" else None
        if problem is not None:
            raise CheckpointBucketError(f"{url}: {problem}")
        try:
            return _store(
                self._scheme, self._host, self._timeout_s, endpoint, os.getpid()
            )
        except client.exceptions.BaseError as error:
            raise CheckpointBucketError(
                f"{url}: the client cannot begin ({type(error).__name__}); set "
                f"{_SETTINGS[self._scheme]} in the environment"
            ) from None


def is_url(text: str) -> bool:
    """Return whether a text is a URL and not a path."""
    return "://" in text


def checked_url(url: str) -> str:
    """Return the URL of a folder of checkpoints, without a slash at its end.

    Raises:
        ValueError: The scheme is unknown, the bucket or the folder is missing, or the
            URL has a query or a password. The message leaves these out.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(
            f"{shown}: checkpoints cannot be written to this kind of URL; give a path, "
            f"or a URL that begins with one of {known}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"{shown}: the URL has a password, a query or a fragment; remove it, and "
            "pass credentials in the environment"
        )
    names = parts.path.strip("/").split("/")
    if not parts.netloc or not {"", ".", ".."}.isdisjoint(names):
        raise ValueError(
            f"{shown}: names no folder in a bucket; give a URL such as "
            "s3://bucket/run/checkpoints"
        )
    return f"{parts.scheme}://{parts.netloc}/{'/'.join(names)}"


def for_each(act: Callable[[_Item], object], items: Iterable[_Item]) -> None:
    """Call `act` with every item on several threads; raise the first error."""
    waiting = list(items)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="roxxel-ckpt-bucket")
    try:
        futures = [pool.submit(act, item) for item in waiting]
    except RuntimeError:  # an interpreter that is shutting down starts no threads
        for item in waiting:
            act(item)
    else:
        for future in futures:
            future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def checked_client() -> ModuleType:
    """Return the module `obstore`, or raise an error that names the extra."""
    try:
        import obstore
    except ModuleNotFoundError as error:
        raise missing_extra("a bucket", "obstore", "roxxel-ckpt", "bucket") from error
    return obstore


def _version(answer: Any) -> Version:
    return Version(answer["e_tag"], answer["version"])


def _check_process() -> None:
    global _first_process  # noqa: PLW0603 - the client's runtime also exists once per process
    if _first_process is None:
        _first_process = os.getpid()
    if _first_process != os.getpid():
        raise CheckpointBucketError(
            "this process was forked from one that has used a bucket, so it cannot "
            'use buckets; start processes with the method "spawn" or "forkserver"'
        )


def _is_transient(error: Exception) -> bool:
    found = _HTTP_KIND.search(str(error))
    return found is not None and found[1] in _TRANSIENT


def _endpoint(scheme: str) -> tuple[str, str]:
    """Return the environment variable that sets the endpoint, and its value."""
    values = ((name, os.environ.get(name)) for name in _ENDPOINTS.get(scheme, ()))
    return next(((name, value) for name, value in values if value), ("", ""))


def _reason(error: Exception) -> str:
    """Return why a request failed, from the class and status of the client's error."""
    kind = type(error).__name__
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    refused = {"PermissionDeniedError", "UnauthenticatedError"}
    if kind in refused or (status and status[1] in {"401", "403"}):
        return _REFUSED
    if code and code[1] == "NoSuchBucket":
        return _NO_BUCKET
    if status or code:
        answer = " ".join(found[1] for found in (status, code) if found)
        return f"the last answer was an error ({answer}); try again later"
    found = _HTTP_KIND.search(text)
    if found is not None and found[1] in _HTTP_REASONS:
        return _HTTP_REASONS[found[1]]
    return f"the request failed ({kind}); check the network and the environment"


@lru_cache(maxsize=64)
def _store(
    scheme: str, host: str, timeout_s: float, endpoint: str, process: int
) -> ObjectStore:
    from obstore import store as stores

    del process  # in the cache key, so that a fork gets its own store
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=min(_REQUEST_S, timeout_s / 6)),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s / 6)),
        "pool_max_idle_per_host": "64",
    }
    retries: Any = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=timeout_s / 3),
        "backoff": {
            "init_backoff": timedelta(seconds=min(0.1, timeout_s / 30)),
            "max_backoff": timedelta(seconds=min(5.0, timeout_s / 12)),
            "base": 2.0,
        },
    }
    if endpoint.startswith("http://"):
        options["allow_http"] = True
    kwargs: dict[str, Any] = {"client_options": options, "retry_config": retries}
    if scheme == "s3":
        return stores.S3Store(host, **kwargs)
    if scheme == "gs":
        return stores.GCSStore(host, **kwargs)
    return stores.AzureStore(host, **kwargs)
