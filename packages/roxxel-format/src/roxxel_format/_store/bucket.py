"""Read and write objects in buckets and on web servers, with the client `obstore`.

Only this module imports `obstore`, which the extra `bucket` installs. A URL names one
object. The client takes endpoint, region and credentials from the environment, for
example `AWS_ENDPOINT_URL`; a URL never holds a secret.

The client does not work in a process that was forked after its first request. Such a
process gets a BucketError instead of a request that never ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from roxxel_store import find_google_problem, missing_extra

from roxxel_format._store.urls import ObjectVersion
from roxxel_format.errors import BucketError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from obstore.store import ObjectStore

_LARGE_BYTES = 64 << 20
_PART_BYTES = 8 << 20
_UPLOAD_S = 120.0
_T = TypeVar("_T")

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
_HTTP_REASONS = {
    "Timeout": "no answer within the time limit; check the network, or raise timeout_s",
    "Connect": "no connection; check the network, the endpoint, and the bucket's name",
    "Interrupted": _ENDED,
    "Request": _ENDED,
}
_REFUSED = "access was refused; check the credentials and the region in the environment"
_KINDS = {
    "PermissionDeniedError": _REFUSED,
    "UnauthenticatedError": _REFUSED,
    "InvalidPathError": "the name of an object has a control character, an empty part, "
    '"." or ".."; give the object another name',
}
_STATUSES = {
    "401": _REFUSED,
    "403": _REFUSED,
    "416": "the object is too short, so it was replaced; open the corpus again",
}
_first_process: int | None = None
"""The process that sent the first request; a fork of it must not send any."""


class Answer(NamedTuple):
    """Bytes of an object, with the size and the tag of the whole object.

    Each version of an object has its own tag: its ETag, or else the time of its last
    change. The tag is empty if the server sends neither.
    """

    data: bytes
    size: int
    tag: str


def read_object(
    url: str, span: tuple[int, int] | None, most_bytes: int, timeout_s: float
) -> Answer:
    """Read the bytes `[start, stop)` of an object; the whole object if `span` is None.

    The client retries after transient failures, such as status 503, with growing
    pauses. It gives up after about `timeout_s` seconds.

    Raises:
        FileNotFoundError: There is no such object.
        BucketError: The store refused, gave a wrong answer, or did not answer in time;
            or the object has more than `most_bytes` bytes.
    """
    client = _client()
    store, key = _store_of(url, timeout_s)
    try:
        found = client.get(store, key, options={"range": span} if span else {})
        size, tag = found.meta["size"], _tag_of(found.meta)
        expected = size if span is None else span[1] - span[0]
        if expected > most_bytes:
            raise BucketError(
                f"{url}: has {size} bytes, but such an object has at most "
                f"{most_bytes}; check the URL"
            )
        data = bytes(found.bytes())
    except (FileNotFoundError, client.exceptions.NotFoundError):
        raise FileNotFoundError(
            f"{url}: there is no such object; check the URL, or write the corpus first"
        ) from None
    except client.exceptions.BaseError as error:
        # The message of the client may contain parts of the response, so leave it out.
        raise BucketError(f"{_what(url, span)}: {_reason(error)}") from None
    if len(data) != expected:
        raise BucketError(
            f"{_what(url, span)}: the answer has {len(data)} bytes, not {expected}; "
            "the object was replaced by a shorter one, or the server is faulty"
        )
    return Answer(data, size, tag)


class Listed(NamedTuple):
    """An object of a listing, and seconds since its last change."""

    url: str
    version: ObjectVersion
    age_s: float

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.version.size


def object_version(url: str, timeout_s: float) -> ObjectVersion:
    """Return the current version of an object; reads none of its bytes.

    Raises:
        FileNotFoundError: There is no such object.
        BucketError: The store refused or did not answer in time.
    """

    def head(client: Any, store: ObjectStore, key: str) -> ObjectVersion | None:
        try:
            found = client.head(store, key)
        except (FileNotFoundError, client.exceptions.NotFoundError):
            return None
        return ObjectVersion(found["size"], _tag_of(found))

    version = _call(url, timeout_s, head)
    if version is None:
        raise FileNotFoundError(f"{url}: there is no such object; check the URL")
    return version


def write_object(url: str, source: Path | bytes, timeout_s: float) -> None:
    """Write an object as a whole; replaces an object of this URL.

    A large file is uploaded in parts, so memory stays below 128 MiB.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    in_parts = size > _LARGE_BYTES
    # S3 accepts at most 10 000 parts.
    part_bytes = max(_PART_BYTES, -(-size // 9000))
    _call(
        url,
        timeout_s,
        lambda client, store, key: client.put(
            store,
            key,
            source,
            use_multipart=in_parts,
            chunk_size=part_bytes,
            max_concurrency=4,
        ),
        is_upload=True,
    )


def replace_object(url: str, data: bytes, tag: str | None, timeout_s: float) -> bool:
    """Write an object if its current tag is `tag`; for None, if it does not exist.

    The response to a request may be lost. So if the request fails and the object then
    holds `data`, the object counts as written.

    Returns:
        False if the object has another tag, or exists although `tag` is None.

    Raises:
        BucketError: The request failed; it may still take effect.
    """
    mode = "create" if tag is None else {"e_tag": tag}

    def put(client: Any, store: ObjectStore, key: str) -> bool:
        try:
            client.put(store, key, data, mode=mode)
        except (
            client.exceptions.AlreadyExistsError,
            client.exceptions.PreconditionError,
        ):
            return False
        return True

    failure: BucketError | None = None
    try:
        if _call(url, timeout_s, put):
            return True
    except BucketError as error:
        failure = error
        timeout_s = max(1.0, timeout_s / 4)  # the time limit has passed already
    with contextlib.suppress(BucketError, FileNotFoundError):
        if read_object(url, None, len(data), timeout_s).data == data:
            return True
    if failure is not None:
        raise failure
    return False


def delete_object(url: str, timeout_s: float) -> None:
    """Delete an object; an object that does not exist is not an error."""

    def delete(client: Any, store: ObjectStore, key: str) -> None:
        with contextlib.suppress(FileNotFoundError, client.exceptions.NotFoundError):
            client.delete(store, key)

    _call(url, timeout_s, delete)


def list_folder(url: str, timeout_s: float, *, is_deep: bool = False) -> list[Listed]:
    """Return the objects directly below the folder `url`.

    If `is_deep`, also return the objects in its subfolders.
    """

    def names(client: Any, store: ObjectStore, key: str) -> list[Listed]:
        now = datetime.now(UTC)
        if is_deep:
            pages = client.list(store, key or None)
            found = [each for page in pages for each in page]
        else:
            found = client.list_with_delimiter(store, key or None)["objects"]
        base = url.removesuffix(key).rstrip("/") + "/"
        return [
            Listed(
                base + each["path"],
                ObjectVersion(each["size"], _listed_tag(url, each)),
                (now - each["last_modified"]).total_seconds(),
            )
            for each in found
        ]

    return _call(url, timeout_s, names)


def _listed_tag(url: str, meta: Any) -> str:
    """Return the tag of a listed object, in the form of `Answer.tag`."""
    tag = _tag_of(meta)
    # Azure quotes ETags in responses, but not in listings.
    is_bare = url.startswith("az://") and meta["e_tag"] and not tag.startswith('"')
    return f'"{tag}"' if is_bare else tag


def _call(
    url: str,
    timeout_s: float,
    operation: Callable[[Any, ObjectStore, str], _T],
    *,
    is_upload: bool = False,
) -> _T:
    """Run an operation in a thread, so that an interrupt ends the wait."""
    # Imported here because it loads logging, which reading does not need.
    from concurrent.futures import Future

    client = _client()
    store, key = _store_of(url, timeout_s, is_upload=is_upload)
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(operation(client, store, key))
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            outcome.set_exception(error)

    threading.Thread(target=run, name="roxxel-upload", daemon=True).start()
    try:
        return outcome.result()
    except (FileNotFoundError, client.exceptions.NotFoundError):
        raise FileNotFoundError(
            f"{url}: there is no such bucket; create it, or check the URL"
        ) from None
    except client.exceptions.BaseError as error:
        raise BucketError(f"{url}: {_reason(error)}") from None


def _what(url: str, span: tuple[int, int] | None) -> str:
    return url if span is None else f"{url}: bytes {span[0]} to {span[1] - 1}"


def _reason(error: Exception) -> str:
    """Return why a request failed, from the class and status of the client's error."""
    kind = type(error).__name__
    if kind in _KINDS:
        return _KINDS[kind]
    text = str(error)
    if "NotPartial" in text:
        return "the server ignores byte ranges; copy the corpus to a disk instead"
    status, code = _STATUS.search(text), _CODE.search(text)
    if status and status[1] in _STATUSES:
        return _STATUSES[status[1]]
    if status or code:
        answer = " ".join(found[1] for found in (status, code) if found)
        return f"the last answer was an error ({answer}); try again later"
    found = _HTTP_KIND.search(text)
    if found is not None and found[1] in _HTTP_REASONS:
        return _HTTP_REASONS[found[1]]
    return f"the request failed ({kind}); check the network and the environment"


def _client() -> ModuleType:
    """Return the module `obstore`; raise in a process that was forked after its use."""
    global _first_process  # noqa: PLW0603 - the client's runtime also exists once per process
    try:
        import obstore
    except ModuleNotFoundError as error:
        raise missing_extra("a bucket", "obstore", "roxxel-format", "bucket") from error
    if _first_process is None:
        _first_process = os.getpid()
    if _first_process != os.getpid():
        raise BucketError(
            "this process was forked from one that has read a bucket, so it cannot "
            'read buckets; start processes with the method "spawn" or "forkserver"'
        )
    return obstore


def _tag_of(meta: Any) -> str:
    """Return the tag of a version of an object: its ETag, or its last change."""
    changed: datetime | None = meta["last_modified"]
    # If the server sends no time of the change, the client returns the epoch.
    is_known = changed is not None and changed.timestamp() > 0
    return meta["e_tag"] or (changed.isoformat() if changed and is_known else "")


def _store_of(
    url: str, timeout_s: float, *, is_upload: bool = False
) -> tuple[ObjectStore, str]:
    """Return the store of a URL, and the key of the object in the store."""
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    values = ((name, os.environ.get(name)) for name in _ENDPOINTS.get(scheme, ()))
    name, endpoint = next(((name, value) for name, value in values if value), ("", ""))
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise BucketError(
            f"{url}: the environment variable {name} is not the URL of a server; begin "
            "it with http:// or https://"
        )
    problem = find_google_problem() if scheme == "gs" else None
    if problem is not None:
        raise BucketError(f"{url}: {problem}")
    # A hanging request must leave time for retries. Parts of an upload share the
    # uplink.
    request_s = max(timeout_s, _UPLOAD_S) if is_upload else timeout_s / 4
    try:
        store = _store(scheme, host, timeout_s, request_s, endpoint, os.getpid())
    except _client().exceptions.BaseError as error:
        raise BucketError(
            f"{url}: the client cannot begin ({type(error).__name__}); set "
            f"{_SETTINGS.get(scheme, 'its settings')} in the environment"
        ) from None
    return store, key


@lru_cache(maxsize=64)
def _store(
    scheme: str,
    host: str,
    timeout_s: float,
    request_s: float,
    endpoint: str,
    process: int,
) -> ObjectStore:
    """Make a store; the client itself reads `endpoint` from the environment."""
    from obstore import store as stores

    del process  # in the cache key, so that a fork gets its own store
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=request_s),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s / 4)),
        "pool_max_idle_per_host": "256",
    }
    retries: Any = {
        "max_retries": 100,
        "retry_timeout": timedelta(seconds=timeout_s * 3 / 4),
        "backoff": {
            "init_backoff": timedelta(seconds=min(0.1, timeout_s / 20)),
            "max_backoff": timedelta(seconds=min(5.0, timeout_s / 5)),
            "base": 2.0,
        },
    }
    if scheme == "http" or endpoint.startswith("http://"):
        options["allow_http"] = True
    kwargs: dict[str, Any] = {"client_options": options, "retry_config": retries}
    if scheme == "s3":
        return stores.S3Store(host, **kwargs)
    if scheme == "gs":
        return stores.GCSStore(host, **kwargs)
    if scheme == "az":
        return stores.AzureStore(host, **kwargs)
    return stores.HTTPStore.from_url(f"{scheme}://{host}", **kwargs)
