"""A bucket server in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "user",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_REGION": "us-east-1",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until a state is reached; far longer than any test takes is an error."""
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Bucket:
    """The bucket `data` of a running server; its objects are the files of `folder`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def set_faults(self, **faults: Any) -> None:
        """Set what goes wrong from now on, and set the statistics to zero."""
        self._call("__faults__", json.dumps(faults).encode())

    def stats(self) -> dict[str, int]:
        """Return the statistics since the last `set_faults`."""
        return json.loads(self._call("__stats__", None))

    def _call(self, path: str, data: bytes | None) -> bytes:
        method = "GET" if data is None else "PUT"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, f"/{path}", data)
            return connection.getresponse().read()


@contextlib.contextmanager
def running_bucket(folder: Path) -> Generator[Bucket]:
    """Run a server; this process and its children find it by their environment."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    program = Path(__file__).with_name("bucket_server.py")
    with subprocess.Popen(
        [sys.executable, str(program), str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        bucket = Bucket(folder / "data", int(process.stdout.readline()))
        endpoint = {"AWS_ENDPOINT_URL": bucket.address}
        try:
            with mock.patch.dict(os.environ, {**_ENVIRONMENT, **endpoint}):
                yield bucket
        finally:
            process.kill()
