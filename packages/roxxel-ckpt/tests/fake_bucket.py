"""An object store in memory: fsspec's face for files, HTTP for TensorStore.

It is Google Cloud Storage as far as a checkpoint needs it. There are objects and no
directories; an object appears whole; nothing is renamed, only copied and deleted.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from fsspec.implementations.memory import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Generator


class FakeBuckets(MemoryFileSystem):
    """What gcsfs is for fsspec, over objects in the memory of this process."""

    protocol = ("gs", "gcs")
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride] - fsspec declares no types
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        for protocol in cls.protocol:
            path = path.removeprefix(f"{protocol}://")
        return "/" + path.strip("/")

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing: there are no directories."""

    def makedirs(self, *_: Any, **__: Any) -> None:
        """Do nothing: there are no directories."""


def objects() -> dict[str, bytes]:
    """Return all objects by name, such as `/bucket/run/1/digests.json`."""
    return {name: file.getvalue() for name, file in FakeBuckets.store.items()}


def put(name: str, data: bytes) -> None:
    """Make or replace an object."""
    FakeBuckets(skip_instance_cache=True).pipe_file(name, data)


def _generation(data: bytes) -> str:
    return str(1 + int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big"))


class _Handler(BaseHTTPRequestHandler):
    """The JSON interface of Google Cloud Storage, as TensorStore speaks it."""

    protocol_version = "HTTP/1.1"
    # Else every answer waits 40 ms for the acknowledgement of its first packet.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        name, query = self._request()
        held = objects()
        if name.endswith("/"):
            prefix = name + query.get("prefix", "")
            found = sorted(other for other in held if other.startswith(prefix))
            items = [
                {"name": other.removeprefix(name), "size": str(len(held[other]))}
                for other in found
            ]
            self._answer(200, json.dumps({"items": items}).encode())
        elif name not in held:
            self._answer(404)
        elif query.get("ifGenerationNotMatch") == _generation(held[name]):
            self._answer(304)
        else:
            self._send(held[name])

    def _send(self, data: bytes) -> None:
        headers = {"x-goog-generation": _generation(data)}
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, data, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(data)) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._answer(206, data[start:stop], headers)

    def do_POST(self) -> None:
        name, query = self._request()
        name += query["name"]
        data = self.rfile.read(int(self.headers["Content-Length"]))
        held = objects()
        now = _generation(held[name]) if name in held else "0"
        if query.get("ifGenerationMatch", now) != now:
            self._answer(412)
            return
        put(name, data)
        made = {"name": query["name"], "generation": _generation(data)}
        self._answer(200, json.dumps({**made, "size": str(len(data))}).encode())

    def do_DELETE(self) -> None:
        name, _ = self._request()
        self._answer(204 if FakeBuckets.store.pop(name, None) else 404)

    def _request(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        bucket, _, name = url.path.split("/b/")[1].partition("/o")
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        return f"/{bucket}/{unquote(name.removeprefix('/'))}", query

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            **(headers or {}),
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve() -> Generator[str]:
    """Serve the buckets over HTTP; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
