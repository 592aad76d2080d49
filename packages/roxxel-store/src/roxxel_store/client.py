"""Objects in buckets and on web servers, read and written by the client `obstore`.

Only this module imports `obstore`, which the extra `bucket` installs. The client takes
endpoint, region and credentials from the environment, for example `AWS_ENDPOINT_URL`; a
URL never holds a secret. Errors leave out the responses of the store, which may hold
secrets.

The client does not work in a process that was forked after its first request. Such a
process gets a BucketError instead of a request that never ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from roxxel_store.errors import BucketError
from roxxel_store.extras import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from obstore.store import ObjectStore

# `in_parallel` holds at most `THREADS * max_parts * _PART_BYTES` of uploaded files.
_PART_BYTES = 8 << 20
_MOST_PARTS = 9000  # S3 accepts at most 10 000.
# All parts in flight share the uplink, so the time limit of a request for a large part
# is longer than that of others.
_LARGE_BYTES = 1 << 20
_UPLOAD_S = 120.0
_REQUEST_S = 100.0
_TOLD_AFTER_S = 10.0
"""Wait for an answer after which the main thread says what it waits for: otherwise a
program without a network would be silent for minutes.
"""
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
_BAD_NAME = re.compile(r'Path "(.*?)"(?::| contained)', re.DOTALL)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound")
_ENDED = "the connection ended early; check the network, and try again later"
# Repeating such a request does no harm, because a creation compares the bytes and a
# replacement names the version.
_HTTP_REASONS = {
    "Timeout": "no answer within the time limit; check the network, or raise {option}",
    "Connect": "no connection; check the network, the endpoint, and the bucket's name",
    "Interrupted": _ENDED,
    "Request": _ENDED,
}
_REFUSED = "access was refused; check the credentials and the region in the environment"
_KINDS = {
    "PermissionDeniedError": _REFUSED,
    "UnauthenticatedError": _REFUSED,
    "InvalidPathError": "the name of an object{name} has a control character, an empty "
    'part (as in "a//b"), "." or ".."; give the object another name',
}
# What a bucket, or a web server such as `python -m http.server`, may lack.
_LACKS = {
    "notpartial": "ignores byte ranges",
    "rangenotsupported": "ignores byte ranges",
    "content-length": "does not say how large the file is (Content-Length)",
}
_STATUSES = {
    "401": _REFUSED,
    "403": _REFUSED,
    "416": "the object is too short, so it was replaced; open it again",
}
_GOOGLE_VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
)
_GOOGLE_LOGIN_FILE = ".config/gcloud/application_default_credentials.json"
_GOOGLE_METADATA_HOST = "metadata.google.internal"
_GOOGLE_PROBE_S = 3.0
_NUM_GOOGLE_PROBES = 3
_Item = TypeVar("_Item")
_logger = logging.getLogger("roxxel_store")
_first_process: int | None = None
"""The process that sent the first request. Its forks must not send any."""


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


class ObjectVersion(NamedTuple):
    """One version of an object: its size in bytes, and its tag.

    The tag is the ETag, or else the time of the last change. It is empty if the server
    sends neither.

    Example:
        >>> ObjectVersion(3, '"5d41"').tag
        '"5d41"'
    """

    size: int
    tag: str


class Answer(NamedTuple):
    """Bytes of an object, with the size, tag and version of the whole object.

    Example:
        >>> Answer(b"ab", 3, '"5d41"', Version('"5d41"', None)).size
        3
    """

    data: bytes
    size: int
    tag: str
    version: Version


class Listed(NamedTuple):
    """An object of a listing, and seconds since its last change.

    Example:
        >>> Listed(ObjectVersion(3, '"5d41"'), 60.0).version.size
        3
    """

    version: ObjectVersion
    age_s: float


class Listing(NamedTuple):
    """Names directly below a prefix: objects, and prefixes of further objects.

    Example:
        >>> Listing({}, ["checkpoints"]).prefixes
        ['checkpoints']
    """

    objects: dict[str, Listed]
    prefixes: list[str]


class Bucket:
    """The objects below one URL; names are relative to it.

    A request that fails for a temporary reason, such as status 503, is repeated with
    growing pauses. Every method raises a BucketError if the store refuses, fails, or
    does not answer in time.

    Args:
        url: URL of a folder, without a slash at its end.
        timeout_s: Seconds after which a request, with its repetitions, fails.
        error: Class of the errors.
        option: What the user raises for a longer time limit: an argument or an option.

    Example:
        >>> Bucket("s3://bucket/run", timeout_s=60).url_of("run.json")
        's3://bucket/run/run.json'
    """

    needs_manifest = True

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        error: type[BucketError] = BucketError,
        option: str = "timeout_s",
    ) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._error, self._option = error, option
        self._scheme, _, rest = url.partition("://")
        self._host, _, root = rest.partition("/")
        self._root = f"{root}/" if root else ""

    def url_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}"

    def names(self, prefix: str = "") -> Listing:
        """List what is directly below a prefix, which is `""` or ends in a slash."""
        found: Any = self._call(
            prefix,
            lambda c, s: c.list_with_delimiter(s, self._root + prefix or None),
        )
        start = len(self._root + prefix)
        return Listing(
            self._listed(found["objects"], prefix),
            [path[start:].rstrip("/") for path in found["common_prefixes"]],
        )

    def tree(self, prefix: str = "") -> dict[str, Listed]:
        """Return every object below a prefix, at any depth; names lack the prefix."""

        def collect(client: ModuleType, store: ObjectStore) -> list[Any]:
            root = self._root + prefix or None
            pages: Iterable[Any] = client.list(store, root, chunk_size=1000)
            return [meta for page in pages for meta in page]

        found = self._call(prefix, collect)
        return self._listed(found, prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every object below a prefix; the names lack the prefix."""
        found = self.tree(prefix).items()
        return {name: each.version.size for name, each in found}

    def get(
        self,
        name: str,
        span: tuple[int, int] | None = None,
        most_bytes: int | None = None,
    ) -> Answer:
        """Return the bytes `[start, stop)` of an object, or the whole object.

        Fewer bytes are returned if the object ends before `stop`.

        Raises:
            FileNotFoundError: There is no such object.
            BucketError: The request failed, or the object has more than `most_bytes`
                bytes.
        """
        # An empty range is no range; the object that a caller means is empty too.
        options: Any = {} if span is None or span[0] == span[1] else {"range": span}
        what = self.url_of(name)
        if options and span is not None:
            what = f"{what}: bytes {span[0]} to {span[1] - 1}"

        def read(client: ModuleType, store: ObjectStore) -> Answer:
            found = client.get(store, self._root + name, options=options)
            meta = found.meta  # a new dict at each look
            size: int = meta["size"]
            expected = size
            if options and span is not None:
                expected = min(span[1], size) - span[0]
            elif most_bytes is not None and size > most_bytes:
                raise self._error(
                    f"{what}: has {size} bytes, but such an object has at most "
                    f"{most_bytes}; check the URL"
                )
            data = bytes(found.bytes())
            if len(data) != expected:
                raise self._error(
                    f"{what}: the answer has {len(data)} bytes, not {expected}; "
                    "the object was replaced by a shorter one, or the server is faulty"
                )
            return Answer(data, size, _tag_of(meta), _version(meta))

        return self._call(name, read, what)

    def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
        """Return the bytes `[start, stop)` of an object, or the whole object.

        Raises:
            FileNotFoundError: There is no such object.
        """
        return self.get(name, span).data

    def version(self, name: str) -> ObjectVersion:
        """Return the current version of an object; reads none of its bytes.

        Raises:
            FileNotFoundError: There is no such object.
        """
        found: Any = self._call(name, lambda c, s: c.head(s, self._root + name))
        return ObjectVersion(found["size"], _tag_of(found))

    def replace(
        self, name: str, data: bytes, version: Version | None
    ) -> Version | None:
        """Write an object if its version is still `version` (None: no such object).

        A request whose response was lost is repeated, so a refusal does not prove that
        another program wrote the object; `roxxel_store.swap.swap_object` reads it.

        Returns:
            The new version, or None if the store refuses because the object has another
            version.

        Raises:
            FileNotFoundError: The object, or the bucket, does not exist.
            BucketError: The request failed; unless `is_refused`, it may still take
                effect.
        """
        mode: Any = "create" if version is None else version.mode()
        if not mode:
            raise self._error(
                f"{self.url_of(name)}: the store gives objects no version, so two "
                "programs could overwrite each other's; use another store"
            )

        def put(client: ModuleType, store: ObjectStore) -> Version | None:
            exceptions = client.exceptions
            try:
                return _version(client.put(store, self._root + name, data, mode=mode))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return None

        return self._call(name, put)

    def write_file(self, name: str, source: Path, max_parts: int = 4) -> None:
        """Write an object from a file, in parts if the file is large.

        At most `max_parts` parts are in memory, of 8 MiB each (of a file below 72 GB).

        Raises:
            FileNotFoundError: The file does not exist.
        """
        size = source.stat().st_size
        part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))
        self._call(
            name,
            lambda c, s: c.put(
                s,
                self._root + name,
                source,
                use_multipart=size > part_bytes,
                chunk_size=part_bytes,
                max_concurrency=max_parts,
            ),
            is_large=size > _LARGE_BYTES,
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

    def delete_folder(self, name: str) -> None:
        """Delete every object in a folder."""
        self.delete([f"{name}/{each}" for each in self.sizes(f"{name}/")])

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing: the bucket itself compares versions."""
        return contextlib.nullcontext()

    def _listed(self, found: list[Any], prefix: str) -> dict[str, Listed]:
        now, start = datetime.now(UTC), len(self._root + prefix)
        return {
            meta["path"][start:]: Listed(
                ObjectVersion(meta["size"], _listed_tag(self._scheme, meta)),
                (now - meta["last_modified"]).total_seconds(),
            )
            for meta in found
            # Some tools put an object `folder/`, which is listed as `folder`.
            if len(meta["path"]) > start
        }

    def _call(
        self,
        name: str,
        request: Callable[[ModuleType, ObjectStore], _Item],
        what: str = "",
        *,
        is_large: bool = False,
    ) -> _Item:
        url = self.url_of(name).rstrip("/")
        client = checked_client(self._error)
        store = self._store(client, url, is_large=is_large)
        what = what or url
        # A hanging request must leave time for its repetitions.
        deadline_s = time.monotonic() + self._timeout_s * 2 / 3
        pause_s = min(0.1, self._timeout_s / 15)
        is_repeated = False
        tell = None if is_large else partial(_tell_of_wait, what, deadline_s)
        while True:
            try:
                return _interruptible(lambda: request(client, store), tell)
            except (FileNotFoundError, client.exceptions.NotFoundError) as error:
                if _NO_BUCKET.search(str(error)):
                    raise self.refusal(
                        f"{url}: there is no such bucket; check the URL"
                    ) from None
                raise FileNotFoundError(
                    f"{url}: there is no such object; check the URL"
                ) from None
            except client.exceptions.AlreadyExistsError:
                raise FileExistsError(f"{url}: exists already") from None
            except client.exceptions.BaseError as error:
                # If the connection of a creation or a deletion fails, the client gives
                # up at once.
                if _is_transient(error) and time.monotonic() + pause_s < deadline_s:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, self._timeout_s / 6)
                    is_repeated = True
                    continue
                # The message of the client may hold parts of the response.
                reason = _reason(error).replace("{option}", self._option)
                if reason == _REFUSED and not is_repeated:
                    raise self.refusal(f"{what}: {reason}") from None
                raise self._error(f"{what}: {reason}") from None
            except ValueError:
                raise self.refusal(
                    f"{url}: the client cannot use this name; give the object another "
                    "name"
                ) from None

    def refusal(self, message: str) -> BucketError:
        """Return the error of a request that certainly changed nothing."""
        error = self._error(message)
        error.is_refused = True
        return error

    def _store(self, client: ModuleType, url: str, *, is_large: bool) -> ObjectStore:
        name, endpoint = _endpoint(self._scheme)
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise self.refusal(
                f"{url}: the environment variable {name} is not the URL of a server; "
                "begin it with http:// or https://"
            )
        problem = _find_google_problem() if self._scheme == "gs" else None
        if problem is not None:
            raise self.refusal(f"{url}: {problem}")
        request_s = min(_REQUEST_S, self._timeout_s / 3)
        if is_large:
            request_s = max(request_s, _UPLOAD_S)
        try:
            return _store(
                self._scheme,
                self._host,
                self._timeout_s,
                request_s,
                endpoint,
                os.getpid(),
            )
        except client.exceptions.BaseError as error:
            raise self.refusal(
                f"{url}: the client cannot begin ({type(error).__name__}); set "
                f"{_SETTINGS.get(self._scheme, 'its settings')} in the environment"
            ) from None


def bucket_of(url: str, timeout_s: float) -> tuple[Bucket, str]:
    """Return the folder of an object, and the name of the object in it.

    Example:
        >>> bucket_of("s3://bucket/run/run.json", 60)[1]
        'run.json'
    """
    folder, _, name = url.rpartition("/")
    return Bucket(folder, timeout_s), name


def checked_client(error: type[BucketError] = BucketError) -> ModuleType:
    """Return the module `obstore`.

    Raises:
        MissingExtraError: It is not installed.
        BucketError: This process was forked from one that has used a bucket.
    """
    global _first_process  # noqa: PLW0603 - the client's runtime also exists once per process
    try:
        import obstore
    except ModuleNotFoundError as missing:
        raise missing_extra(
            "a bucket", "obstore", "roxxel-store", "bucket"
        ) from missing
    if _first_process is None:
        _first_process = os.getpid()
    if _first_process != os.getpid():
        raise error(
            "this process was forked from one that has used a bucket, so it cannot "
            'use buckets; start processes with the method "spawn" or "forkserver"'
        )
    return obstore


def _tell_of_wait(what: str, deadline_s: float) -> None:
    left_s = deadline_s - time.monotonic()
    if left_s > 0:
        _logger.warning(
            "%s: no answer after %g s; trying for up to %.0f s more, so check the "
            "network, the endpoint, and the bucket's name",
            what,
            _TOLD_AFTER_S,
            left_s,
        )


def _interruptible(
    request: Callable[[], _Item], tell: Callable[[], None] | None
) -> _Item:
    """Run a request in a thread if this is the main one, so an interrupt ends the wait.

    The request itself may still take effect. `tell` is called once if the wait is long.
    """
    if threading.current_thread() is not threading.main_thread():
        return request()
    outcome: list[_Item] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(request())
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            failure.append(error)
        done.set()

    thread = threading.Thread(target=run, name="roxxel-bucket-request", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # an interpreter that is shutting down starts no threads
        return request()
    if tell is not None and not done.wait(_TOLD_AFTER_S):
        tell()
    done.wait()
    if failure:
        raise failure[0]
    return outcome[0]


def _version(answer: Any) -> Version:
    return Version(answer["e_tag"], answer["version"])


def _tag_of(meta: Any) -> str:
    """Return the tag of a version of an object: its ETag, or its last change."""
    changed: datetime | None = meta["last_modified"]
    # If the server sends no time of the change, the client returns the epoch.
    is_known = changed is not None and changed.timestamp() > 0
    return meta["e_tag"] or (changed.isoformat() if changed and is_known else "")


def _listed_tag(scheme: str, meta: Any) -> str:
    """Return the tag of a listed object, in the form of `Answer.tag`."""
    tag = _tag_of(meta)
    # Azure quotes ETags in responses, but not in listings.
    is_bare = scheme == "az" and meta["e_tag"] and not tag.startswith('"')
    return f'"{tag}"' if is_bare else tag


def _is_transient(error: Exception) -> bool:
    found = _HTTP_KIND.search(str(error))
    return found is not None and found[1] in _HTTP_REASONS


def _endpoint(scheme: str) -> tuple[str, str]:
    """Return the environment variable that sets the endpoint, and its value."""
    values = ((name, os.environ.get(name)) for name in _ENDPOINTS.get(scheme, ()))
    return next(((name, value) for name, value in values if value), ("", ""))


def _reason(error: Exception) -> str:
    """Return why a request failed, from the class and status of the client's error."""
    kind = type(error).__name__
    text = str(error)
    if kind in _KINDS:
        found = _BAD_NAME.search(text)
        return _KINDS[kind].replace("{name}", f" ({found[1]!r})" if found else "")
    for sign, lack in _LACKS.items():
        if sign in text.lower():
            return f"the server {lack}; copy the file to a disk instead"
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


def _find_google_problem() -> str | None:
    """Describe why Google's buckets cannot be used; None if credentials may exist.

    Without credentials, the client requests them from the metadata server of Google's
    machines; anywhere else, that fails only after many minutes. The server may be
    busy at the start of a large job, so this function contacts it several times.
    """
    if any(os.environ.get(name) for name in _GOOGLE_VARIABLES):
        return None
    home = os.environ.get("HOME")
    if home and Path(home, _GOOGLE_LOGIN_FILE).exists():
        return None
    host = os.environ.get("GCE_METADATA_HOST") or _GOOGLE_METADATA_HOST
    if _answers(host):
        return None
    return (
        "there are no credentials for Google Cloud Storage, and this is not one of "
        "Google's machines; set GOOGLE_APPLICATION_CREDENTIALS to a file of "
        "credentials, or run: gcloud auth application-default login"
    )


@cache
def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    for _ in range(_NUM_GOOGLE_PROBES):
        try:
            with socket.create_connection((host, int(port or 80)), _GOOGLE_PROBE_S):
                return True
        except (OSError, ValueError):
            continue
    return False


@lru_cache(maxsize=64)
def _store(
    scheme: str,
    host: str,
    timeout_s: float,
    request_s: float,
    endpoint: str,
    process: int,
) -> ObjectStore:
    """Make a store. The client also reads its endpoint from the environment."""
    from obstore import store as stores

    del process  # in the cache key, so that a fork gets its own store
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=request_s),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s / 3)),
        "pool_max_idle_per_host": "256",
    }
    retries: Any = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=timeout_s * 2 / 3),
        "backoff": {
            "init_backoff": timedelta(seconds=min(0.1, timeout_s / 15)),
            "max_backoff": timedelta(seconds=min(5.0, timeout_s / 6)),
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
