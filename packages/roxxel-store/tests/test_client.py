"""Requests to a bucket: conditional, repeated, read back, or one clear error."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from obstore.store import GCSStore
from roxxel_store.client import Bucket, Version, bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.swap import swap_object

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "gs://data/run"


class Google(BaseHTTPRequestHandler):
    """Answers as Google does, which compares generations and not ETags."""

    objects: dict[str, tuple[bytes, int]]
    refuses: bool
    loses: bool
    answers: threading.Event

    def do_GET(self) -> None:
        assert self.answers.wait(600)
        data, generation = self.objects.get(self.path, (b"", 0))
        self.answer(200 if generation else 404, data, generation)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.headers.get("x-goog-if-generation-match")
        generation = self.objects.get(self.path, (b"", 0))[1]
        if self.refuses:
            self.answer(403)
        elif wanted is None or int(wanted) != generation:
            self.answer(412)
        else:
            type(self).objects[self.path] = data, generation + 1
            if self.loses:
                type(self).loses = False
                self.close_connection = True
            else:
                self.answer(200, generation=generation + 1)

    def answer(self, status: int, data: bytes = b"", generation: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"the same for every generation"')
        self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Print nothing."""


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Google]]:
    Google.objects, Google.refuses, Google.loses = {}, False, False
    Google.answers = threading.Event()
    Google.answers.set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Google) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        account = {"gcs_base_url": address, "disable_oauth": True}
        names = ("client_email", "private_key", "private_key_id")
        key = json.dumps(account | dict.fromkeys(names, ""))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        store = GCSStore(
            "data", service_account_key=key, client_options={"allow_http": True}
        )
        # A store that the environment describes refuses http.
        monkeypatch.setattr("roxxel_store.client._store", lambda *_: store)
        yield Google
        server.shutdown()


@pytest.mark.usefixtures("google")
def test_an_object_of_google_is_replaced_by_its_generation() -> None:
    bucket = Bucket(URL, 10)
    first = swap_object(bucket, "manifest.json", b"one", None)
    assert first is not None

    assert swap_object(bucket, "manifest.json", b"two", first) is not None
    assert swap_object(bucket, "manifest.json", b"late", first) is None
    assert bucket.read("manifest.json") == b"two"


def test_a_write_whose_answer_was_lost_counts(google: type[Google]) -> None:
    google.loses = True
    bucket = Bucket(URL, 10)

    version = swap_object(bucket, "manifest.json", b"one", None)

    assert version == bucket.get("manifest.json").version


def test_a_request_that_was_refused_says_so(google: type[Google]) -> None:
    google.refuses = True

    with pytest.raises(BucketError, match="run/a: access was refused") as caught:
        Bucket(URL, 10).replace("a", b"", None)

    assert caught.value.is_refused


def test_a_long_wait_for_an_answer_is_told_while_it_lasts(
    google: type[Google], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def answer(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        google.answers.set()
        return False

    monkeypatch.setattr("roxxel_store.client._TOLD_AFTER_S", 0.01)
    monkeypatch.setattr(logging.getLogger("roxxel_store"), "filters", [answer])
    google.objects = {"/data/run%2Fa": (b"one", 1), "/data/run/a": (b"one", 1)}
    google.answers.clear()

    assert Bucket(URL, 600).read("a") == b"one"
    assert len(told) == 1
    assert "gs://data/run/a: no answer after" in told[0]
    assert "the network" in told[0]


def test_a_store_without_versions_replaces_nothing() -> None:
    with pytest.raises(BucketError, match=r"s3://data/run/a: .* no version"):
        Bucket("s3://data/run", 1).replace("a", b"", Version(None, None))


def test_an_object_is_named_in_its_folder() -> None:
    bucket, name = bucket_of("https://host/a/b/c.rox", 1)

    assert (bucket.url, name) == ("https://host/a/b", "c.rox")
    assert bucket.url_of(name) == "https://host/a/b/c.rox"
