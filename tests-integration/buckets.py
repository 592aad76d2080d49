"""A bucket on a server of this machine, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Generator

SERVER = (
    Path(__file__).parents[1] / "packages/roxxel-format/tests/extras/bucket_server.py"
)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "user",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_REGION": "us-east-1",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


@contextlib.contextmanager
def running_bucket(root: Path) -> Generator[int]:
    """Serve `root/data` as the bucket `data`; yield the port of the server.

    This process and its children find the server by their environment.
    """
    (root / "data").mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, str(SERVER), str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        try:
            with mock.patch.dict(os.environ, CREDENTIALS | endpoint):
                yield port
        finally:
            process.kill()


def set_faults(port: int, **faults: Any) -> None:
    """Set what goes wrong from now on, and set the statistics to zero."""
    _call(port, "PUT", "/__faults__", json.dumps(faults))


def stats(port: int) -> dict[str, int]:
    """Return the requests and the bytes of objects since the last `set_faults`."""
    return json.loads(_call(port, "GET", "/__stats__", None))


def sent(port: int) -> dict[str, int]:
    """Return the bytes of each object since the last `set_faults`."""
    return json.loads(_call(port, "GET", "/__sent__", None))


def _call(port: int, method: str, path: str, body: str | None) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        return connection.getresponse().read()
