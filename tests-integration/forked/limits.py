"""Time limits of requests in tests, which hold on a busy machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from roxxel_store import client

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def soon_given_up(request_s: float = 100.0) -> Generator[None]:
    """Repeat a request that fails for less than a second, whatever its time limit.

    An answer may take `request_s`, so a server on a busy machine is never late.
    """
    begin = client.Bucket.__init__
    store_of = client._store  # pyright: ignore[reportPrivateUsage] - has no other limit

    def begin_hasty(bucket: Any, url: str, _: float, **options: Any) -> None:
        begin(bucket, url, 1.0, **options)

    def patient(scheme: str, host: str, timeout_s: float, _: float, *rest: Any) -> Any:
        return store_of(scheme, host, timeout_s, request_s, *rest)

    with (
        mock.patch.object(client.Bucket, "__init__", begin_hasty),
        mock.patch.object(client, "_store", patient),
    ):
        yield
