"""A server with the part of S3's interface that Roxxel uses, and with faults on demand.

    python bucket_server.py FOLDER

serves FOLDER/BUCKET/KEY as http://127.0.0.1:PORT/BUCKET/KEY, and prints PORT. It serves
ranges, conditional and unconditional puts, puts in parts, deletions and listings.

`PUT /__faults__` with a JSON object sets what goes wrong from then on:

- `latency_s`: seconds before every answer;
- `together`: sizes of groups; requests for bytes of matching keys wait until those of
  the first group are there, then those of the next, and the last size repeats;
- `rate`: share of the requests that fail, by one of `kinds` in turn at random;
- `kinds`: any of `503`, `403`, `cut` (a body that ends early), `reset`, `hang`, `wrong`
  (other bytes), `longer` (a body longer than the range), `whole` (the range is
  ignored), `other` (the tag and size of another object), `untagged` (neither tag nor
  time), `lost` (a put, post or
  deletion takes effect, but the connection ends before the answer), `late` (the same,
  but without an answer, and only at the next `PUT /__faults__`);
- `keys`: a regular expression; only matching keys fail;
- `methods`: only these methods fail, such as `["PUT"]`;
- `then`: what goes wrong after the first fault, in place of all this;
- `seed`: of the random choices.

`GET /__stats__` returns the number of requests, of requests that change objects, and
the bytes of objects that were sent since the last `PUT /__faults__`. `open` is the
number of other requests that the server still deals with. `GET /__sent__` returns the
bytes of each object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_Answer = tuple[int, bytes, dict[str, str]]
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    304: "Not Modified",
    403: "Forbidden",
    404: "Not Found",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
    503: "Slow Down",
}


class Server:
    """The objects in a folder, and the faults of their server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: dict[str, Any] = {}
        self.random = random.Random(0)
        self.num_requests = self.num_changes = self.num_bytes = 0
        self.sent: dict[str, int] = {}
        self.num_open = 0
        self.parts: dict[str, dict[int, bytes]] = {}
        self.late: list[tuple[Any, ...]] = []
        self.waiting: list[asyncio.Event] = []

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                try:
                    text = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                first, *lines = text.decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ", 2)
                headers = {
                    key.lower(): value.strip()
                    for key, _, value in (line.partition(":") for line in lines)
                }
                self.num_open += 1
                try:
                    body = await _body(reader, headers)
                    stays = await self._answer(writer, method, target, headers, body)
                finally:
                    self.num_open -= 1
                if not stays:
                    return
        finally:
            writer.close()

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
    ) -> bool:
        """Answer a request; return whether the connection stays open."""
        url = urlsplit(target)
        key = unquote(url.path).lstrip("/")
        if key.startswith("__"):
            return await self._send(writer, 200, self._control(key, body))
        self.num_requests += 1
        self.num_changes += method not in {"GET", "HEAD"}
        await asyncio.sleep(self.faults.get("latency_s", 0))
        if method == "GET" and re.search(self.faults.get("keys", ""), key):
            await self._wait_for_others(self.faults.get("together", [1]))
        fault = self._fault(method, key)
        if fault == "reset":
            writer.transport.abort()
        elif fault == "hang":
            await asyncio.sleep(3600)
        elif fault in {"503", "403"}:
            code = "SlowDown" if fault == "503" else "AccessDenied"
            text = f"<Error><Code>{code}</Code><Message>secret</Message></Error>"
            await self._send(writer, int(fault), text.encode())
        elif method == "GET" and "list-type" in url.query:
            await self._send(writer, 200, self._listed(key, parse_qs(url.query)))
        elif method in {"GET", "HEAD"}:
            return await self._get(writer, method, key, headers, fault)
        elif fault == "late":
            self.late.append((method, key, parse_qs(url.query, True), headers, body))
            await asyncio.sleep(3600)
        else:
            answer = self._change(method, key, parse_qs(url.query, True), headers, body)
            if fault == "lost":
                writer.transport.abort()
            else:
                await self._send(writer, *answer)
        return fault not in {"reset", "lost"}

    async def _wait_for_others(self, sizes: list[int]) -> None:
        mine = asyncio.Event()
        self.waiting.append(mine)
        if len(self.waiting) >= sizes[0]:
            sizes[:-1] = sizes[1:]
            self._let_go()
        await mine.wait()

    def _let_go(self) -> None:
        for each in self.waiting:
            each.set()
        self.waiting.clear()

    def _control(self, key: str, body: bytes) -> bytes:
        if key == "__faults__":
            while self.late:
                self._change(*self.late.pop(0))
            self._let_go()
            self.faults = json.loads(body)
            self.random = random.Random(self.faults.get("seed", 0))
            self.num_requests = self.num_changes = self.num_bytes = 0
            self.sent.clear()
        if key == "__sent__":
            return json.dumps(self.sent).encode()
        stats = {
            "requests": self.num_requests,
            "changes": self.num_changes,
            "bytes": self.num_bytes,
            "open": self.num_open - 1,  # Without this request.
        }
        return json.dumps(stats).encode()

    def _fault(self, method: str, key: str) -> str | None:
        kinds: list[str] = self.faults.get("kinds", [])
        if not kinds or not re.search(self.faults.get("keys", ""), key):
            return None
        if method not in self.faults.get("methods", [method]):
            return None
        if self.random.random() >= float(self.faults.get("rate", 1)):
            return None
        fault = self.random.choice(kinds)
        self.faults = self.faults.get("then", self.faults)
        return fault

    async def _get(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        key: str,
        headers: dict[str, str],
        fault: str | None,
    ) -> bool:
        path = self.root / key
        if not path.is_file():
            text = b"<Error><Code>NoSuchKey</Code></Error>"
            return await self._send(writer, 404, text)
        found = None if fault == "whole" else _RANGE.fullmatch(headers.get("range", ""))
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            start, stop = _span(found, size) if found else (0, size)
            if start >= size > 0:
                return await self._send(writer, 416, b"")
            data = os.pread(file.fileno(), stop - start, start)
        tag, length = _tag(status), stop - start
        if fault == "untagged":
            tag = ""
        if fault == "other":
            tag, size = '"other"', size + 4096
        fields = {
            "ETag": tag,
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        if not tag:
            del fields["ETag"], fields["Last-Modified"]
        if found:
            fields["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        body = self._damaged(data, fault) if method == "GET" else b""
        length = len(body) if fault == "longer" else length
        self.num_bytes += len(body)
        self.sent[key] = self.sent.get(key, 0) + len(body)
        await self._send(writer, 206 if found else 200, body, fields, length)
        if fault == "cut":
            writer.transport.abort()
        return fault != "cut"

    def _damaged(self, data: bytes, fault: str | None) -> bytes:
        if fault == "wrong" and data:
            changed = bytearray(data)
            changed[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            return bytes(changed)
        if fault == "longer":
            return data + b"\7" * 16
        return data[: len(data) // 2] if fault == "cut" else data

    def _change(  # noqa: PLR0911 - one return for each kind of request
        self,
        method: str,
        key: str,
        query: dict[str, list[str]],
        headers: dict[str, str],
        body: bytes,
    ) -> _Answer:
        """Put or delete objects; return status, body and fields of the answer."""
        upload = query.get("uploadId", [""])[0]
        if method == "DELETE":
            self.parts.pop(upload, None)
            if not upload:
                (self.root / key).unlink(missing_ok=True)
            return 204, b"", {}
        if method == "POST" and "delete" in query:
            return self._delete(key, body)
        if method == "POST" and "uploads" in query:
            upload = f"{len(self.parts)}-{self.random.getrandbits(64):x}"
            self.parts[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
            return 200, _xml("InitiateMultipartUploadResult", text), {}
        if method == "PUT" and upload:
            number = int(query["partNumber"][0])
            self.parts[upload][number] = body
            return 200, b"", {"ETag": f'"{number}-{len(body)}"'}
        if method == "POST":
            parts = self.parts.pop(upload)
            tag = self._put(key, b"".join(parts[number] for number in sorted(parts)))
            return 200, _xml("CompleteMultipartUploadResult", f"<ETag>{tag}</ETag>"), {}
        path = self.root / key
        have = _tag(path.stat()) if path.exists() else None
        if headers.get("if-none-match") == "*" and have is not None:
            return 412, b"", {}
        if headers.get("if-match") not in {None, have}:
            return 412, b"", {}
        return 200, b"", {"ETag": self._put(key, body)}

    def _put(self, key: str, body: bytes) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{self.random.getrandbits(64):x}")
        draft.write_bytes(body)
        draft.rename(path)
        return _tag(path.stat())

    def _delete(self, bucket: str, body: bytes) -> _Answer:
        keys = [
            unescape(found, {"&quot;": '"', "&apos;": "'"})
            for found in re.findall("<Key>(.*?)</Key>", body.decode())
        ]
        for key in keys:
            (self.root / bucket / key).unlink(missing_ok=True)
        done = "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
        return 200, _xml("DeleteResult", done), {}

    def _listed(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        base = self.root / bucket.strip("/")
        rows: list[str] = []
        folders: set[str] = set()
        for path in sorted(base.rglob("*")):
            # A key may hold what no path of a disk does: two slashes in a row.
            key = path.relative_to(base).as_posix().replace("%2F", "/")
            if not path.is_file() or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            status = path.stat()
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{status.st_size}</Size>"
                f"<ETag>{escape(_tag(status))}</ETag>"
                f"<LastModified>{_time(status)}</LastModified></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(folders)
        )
        return (
            "<ListBucketResult><IsTruncated>false</IsTruncated>"
            f"{''.join(rows)}{common}</ListBucketResult>"
        ).encode()

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        code: int,
        body: bytes,
        fields: dict[str, str] | None = None,
        length: int | None = None,
    ) -> bool:
        lines = [f"HTTP/1.1 {code} {_REASONS[code]}"]
        lines += [f"{key}: {value}" for key, value in (fields or {}).items()]
        if code != 204:
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return True


def _xml(root: str, text: str) -> bytes:
    return f"<{root}>{text}</{root}>".encode()


def _tag(status: os.stat_result) -> str:
    # Two puts may fall into one tick of the file system's clock.
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def _time(status: os.stat_result) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))


def _span(found: re.Match[str], size: int) -> tuple[int, int]:
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2]) + 1) if found[2] else size


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    size = int(headers.get("content-length", 0))
    if size and headers.get("expect", "").lower() == "100-continue":
        return b""
    return await reader.readexactly(size) if size else b""


async def main(root: str) -> None:
    """Serve a folder until this process is ended."""
    server = Server(Path(root))
    listening = await asyncio.start_server(
        server.serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024
    )
    sys.stdout.write(f"{listening.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
