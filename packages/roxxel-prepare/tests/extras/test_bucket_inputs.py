"""Inputs in buckets: the same corpus as from files, and errors that name the URL."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import json
import random
import shutil
import struct
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel

from .buckets import Bucket, running_bucket
from .commands import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RAW = "s3://data/raw"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def bucket(server: Bucket) -> Bucket:
    server.set_faults()
    shutil.rmtree(server.folder)
    (server.folder / "raw").mkdir(parents=True)
    return server


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def json_lines(number: int, seed: int = 0) -> bytes:
    chosen = random.Random(seed)
    rows = [json.dumps({"text": "é" * chosen.randrange(60)}) for _ in range(number)]
    return "".join(f"{row}\n" for row in rows).encode()


def parquet() -> bytes:
    arrow: Any = import_module("pyarrow")
    library: Any = import_module("pyarrow.parquet")
    file = io.BytesIO()
    texts = [f"row {number} {'x' * (number % 50)}" for number in range(1000)]
    table = arrow.table({"other": texts, "text": texts})
    library.write_table(table, file, row_group_size=60)
    return file.getvalue()


def arrow_stream() -> bytes:
    arrow: Any = import_module("pyarrow")
    table = arrow.table({"text": [f"row {number}" for number in range(1000)]})
    file = io.BytesIO()
    with arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=100)
    return file.getvalue()


def numbers() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3000, dtype=np.uint16).reshape(30, 100))
    return file.getvalue()


def zst(data: bytes) -> bytes:
    library: Any = import_module("zstandard")
    return library.ZstdCompressor(write_checksum=True).compress(data)


def datatrove(folder: Path) -> None:
    documents = [np.arange(n % 23, dtype="<u2") + n for n in range(1, 400)]
    ends = np.cumsum([document.size for document in documents]).tolist()
    (folder / "0.ds").write_bytes(b"".join(each.tobytes() for each in documents))
    (folder / "0.ds.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    (folder / "0.ds.metadata").write_text("gpt2|2\n")


def rows_of_several_formats(folder: Path) -> None:
    for name, data in {
        "2.jsonl": json_lines(400),
        "10.jsonl": json_lines(300, 1),
        "3.jsonl.gz": gzip.compress(json_lines(300, 2)) * 2,
        "4.jsonl.zst": zst(json_lines(200, 3)),
        "5.json": '[{"text": "a text, é"}, ""]'.encode(),
        "6.csv.gz": gzip.compress(b'text,id\r\n"a, ""b""\n",1\r\n'),
        "README.md": b"about the data",
        "_SUCCESS": b"",
        "sub/1.parquet": parquet(),
        "sub/2.arrow": arrow_stream(),
        "sub/.hidden.txt": b"\xff",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def ids_of_several_formats(folder: Path) -> None:
    (folder / "1.npy").write_bytes(numbers())
    datatrove(folder)


def saved_dataset(folder: Path) -> None:
    names = ["b.arrow", "a.arrow"]
    for name in names:
        (folder / name).write_bytes(arrow_stream())
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def content(target: str | Path) -> tuple[list[bytes], dict[str, Any]]:
    """Return the shards of a corpus, and its manifest without names and inputs."""
    with Roxxel(target) as corpus:
        assert corpus.verify().ok
        shards = [Path(path).read_bytes() for path in corpus.paths]
    folder = Path(target).parent
    assert not [*folder.glob(".*.plan"), *folder.glob(".*.unit")]
    table = json.loads((folder / "c_manifest.json").read_bytes())
    del table["crc32"]
    for part in table["parts"]:
        del part["shards"]["names"]
        for write in part["writes"]:
            assert write["arguments"].pop("inputs")["number"] > 0
    return shards, table


@pytest.mark.parametrize(
    "make", [rows_of_several_formats, ids_of_several_formats, saved_dataset]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_shards_equal_those_of_local_copies(
    bucket: Bucket, tmp_path: Path, make: Callable[[Path], None], workers: int
) -> None:
    make(bucket.folder / "raw")
    options = "--unit-bytes", 3000, "--workers", workers, "--separator", 0

    for name, inputs in (("disk", bucket.folder / "raw"), ("bucket", f"{RAW}/")):
        assert run("write", tmp_path / name / "c_*.rox", inputs, *options) == 0

    shards, table = content(tmp_path / "bucket" / "c_*.rox")
    assert len(shards) > 2
    assert (shards, table) == content(tmp_path / "disk" / "c_*.rox")


def test_parts_and_corpus_in_the_bucket_give_the_same_tokens(
    bucket: Bucket, tmp_path: Path
) -> None:
    rows_of_several_formats(bucket.folder / "raw")
    options = "--unit-bytes", 5000, "--separator", 0
    target = "s3://data/out/c_*.rox"

    for part in (2, 0, 1):
        assert run("write", target, RAW, *options, "--part", f"{part}/3") == 0
    assert run("write", target, "--commit") == 0
    assert run("write", tmp_path / "c_*.rox", bucket.folder / "raw", *options) == 0

    assert Roxxel(target).fingerprint == Roxxel(tmp_path / "c_*.rox").fingerprint


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["1.txt", "2.txt", "10.txt", "sub/3.txt", "sub/[4].txt"]),
        ("/*.txt", ["1.txt", "2.txt", "10.txt"]),
        ("/[!2]*.txt", ["1.txt", "10.txt"]),
        ("/**/[13].txt", ["1.txt", "sub/3.txt"]),
        ("/*/*.txt", ["sub/3.txt", "sub/[4].txt"]),
        ("/sub/[4].txt", ["sub/[4].txt"]),
        ("/**", ["1.txt", "2.txt", "10.txt", "sub/3.txt", "sub/[4].txt"]),
        ("/10.txt", ["10.txt"]),
    ],
)
def test_folders_and_patterns_are_in_natural_order(
    bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    pattern: str,
    expected: list[str],
) -> None:
    for name in ["10.txt", "2.txt", "1.txt", ".3.txt", "sub/3.txt", "sub/[4].txt"]:
        path = bucket.folder / "raw" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)

    options = "--unit-bytes", 1, "--dry-run"
    assert run("write", "c_*.rox", RAW + pattern, *options) == 0

    _, *units, _ = capsys.readouterr().out.splitlines()
    paths = [unit.split(maxsplit=2)[2] for unit in units]
    assert paths == [f"{RAW}/{name}" for name in expected]


def test_a_file_of_a_web_server_is_read(bucket: Bucket, tmp_path: Path) -> None:
    (bucket.folder / "raw" / "a.jsonl").write_bytes(b'"one"\n"two"\n')
    url = f"{bucket.address}/data/raw/a.jsonl"

    assert run("write", tmp_path / "c_*.rox", url) == 0

    found = [bytes(each) for each in Roxxel(tmp_path / "c_*.rox").documents]
    assert found == [b"one", b"two"]


def test_a_part_of_lines_reads_its_range(bucket: Bucket, tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 80}).encode() + b"\n"
    (bucket.folder / "raw" / "a.jsonl").write_bytes(line * 100_000)
    command = "write", tmp_path / "c_*.rox", f"{RAW}/a.jsonl", "--unit-bytes", "1M"
    assert run(*command, "--part", "0/9") == 0  # Reads the first document too.
    bucket.set_faults()

    assert run(*command, "--part", "3/9") == 0

    assert 1 << 20 < bucket.stats()["bytes"] < 3 << 20


def test_row_groups_of_parquet_read_their_column(
    bucket: Bucket, tmp_path: Path
) -> None:
    arrow: Any = import_module("pyarrow")
    library: Any = import_module("pyarrow.parquet")
    chosen = np.random.default_rng(0)
    texts = [chosen.bytes(50).hex() for _ in range(40_000)]
    table = arrow.table({"text": texts, "other": texts})
    path = bucket.folder / "raw" / "a.parquet"
    options = {"compression": "none", "use_dictionary": False}
    library.write_table(table, path, row_group_size=4000, **options)
    command = "write", tmp_path / "c_*.rox", f"{RAW}/a.parquet", "--unit-bytes", "800K"
    assert run(*command, "--part", "0/10") == 0
    bucket.set_faults()

    assert run(*command, "--part", "3/10") == 0

    # 416 kB of a column, and twice the footer with its buffers.
    assert 400_000 < bucket.stats()["bytes"] < 1_500_000
    assert path.stat().st_size > 8_000_000


def test_an_object_that_is_read_in_order_is_requested_once(
    bucket: Bucket, tmp_path: Path
) -> None:
    path = bucket.folder / "raw" / "a.jsonl"
    path.write_bytes(b"".join(b'"%s"\n' % (b"ab" * 40000) for _ in range(100)))
    bucket.set_faults()

    assert run("write", tmp_path / "c_*.rox", f"{RAW}/a.jsonl") == 0

    # The first document is read before, and while it is read the next range is too.
    assert bucket.stats()["bytes"] < path.stat().st_size + (1 << 20)


def test_a_corpus_is_kept_without_reading_the_inputs(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of_several_formats(bucket.folder / "raw")
    command = "write", tmp_path / "c_*.rox", f"{RAW}/*.jsonl"
    assert run(*command) == 0
    capsys.readouterr()
    bucket.set_faults()

    assert run(*command) == 0

    assert f" tokens of {tmp_path}/" in capsys.readouterr().err
    assert bucket.stats()["bytes"] == 0
    (bucket.folder / "raw" / "2.jsonl").write_bytes(json_lines(400)[::-1])
    assert run(*command) == 1
    assert f"({RAW}/2.jsonl differs in its ETag, so it was replaced)" in (
        capsys.readouterr().err
    )


def test_one_of_many_objects_that_was_replaced_is_told_by_its_etag(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(65):  # More than have a row of their own in the record.
        (bucket.folder / "raw" / f"{number}.txt").write_text(f"text {number}")
    command = "write", tmp_path / "c_*.rox", f"{RAW}/*.txt"
    assert run(*command) == 0
    (bucket.folder / "raw" / "3.txt").write_text("TEXT 3")

    assert run(*command) == 1

    expected = f"(one of {RAW}/2.txt to {RAW}/3.txt differs, or was modified)"
    assert expected in capsys.readouterr().err


def test_a_preparation_names_a_replaced_object(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of_several_formats(bucket.folder / "raw")
    command = "write", tmp_path / "c_*.rox", RAW, "--unit-bytes", 5000
    assert run(*command, "--part", "0/3") == 0
    path = bucket.folder / "raw" / "5.json"
    path.write_bytes(path.read_bytes().replace(b"a text", b"A text"))

    assert run(*command, "--part", "1/3") == 1

    assert (
        f"differs from this command ({RAW}/5.json differs in its ETag, so it was "
        "replaced); finish it with the old inputs"
    ) in capsys.readouterr().err


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bucket.folder / "raw" / "a.jsonl").write_bytes(json_lines(400))
    bucket.set_faults(kinds=["other"], keys="raw", methods=["GET"])

    command = "write", tmp_path / "c_*.rox", f"{RAW}/a.jsonl", "--skip-bad"
    assert run(*command) == 1

    assert capsys.readouterr().err == (
        f"roxxel-prepare: {RAW}/a.jsonl: was replaced after the inputs were listed; "
        "write again\n"
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow", "a.npy", "a.txt"])
def test_a_refusal_is_not_skipped_and_shows_no_secret(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (bucket.folder / "raw" / name).write_bytes(parquet())
    bucket.set_faults(kinds=["403"], keys="raw", methods=["GET"])

    assert run("write", tmp_path / "c_*.rox", f"{RAW}/{name}", "--skip-bad") == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel-prepare: {RAW}/{name}: bytes ")
    assert "access was refused; check the credentials and the region" in error
    assert "secret" not in error


@pytest.mark.parametrize("name", ["tab\tx.jsonl", "a//{b}.jsonl", "/a.jsonl"])
def test_an_object_whose_name_the_client_refuses_is_named(
    name: str, bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_disk = name.replace("/", "%2F")  # the server turns it back
    (bucket.folder / "raw" / on_disk).write_bytes(json_lines(4))

    assert run("write", tmp_path / "c_*.rox", RAW) == 1

    error = capsys.readouterr().err
    assert f"{RAW}: " in error
    assert repr(f"raw/{name}") in error
    assert "give the object another name" in error


def test_marks_of_other_programs_are_no_data_in_a_bucket(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = "_SUCCESS", "_committed_41", "day=1_$folder$", "day=1/_SUCCESS"
    (bucket.folder / "raw" / "day=1").mkdir()
    (bucket.folder / "raw" / "day=1" / "a.jsonl").write_bytes(b'"one"\n')
    for name in marks:
        (bucket.folder / "raw" / name).touch()

    assert run("write", tmp_path / "c_*.rox", RAW) == 0

    assert f"left out {len(marks)} files" in capsys.readouterr().out
    found = [bytes(each) for each in Roxxel(tmp_path / "c_*.rox").documents]
    assert found == [b"one"]


class _WithoutRanges(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


class _WithoutLength(_WithoutRanges):
    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Content-Length":
            super().send_header(keyword, value)


@pytest.mark.parametrize(
    ("server_of", "problem"),
    [
        (_WithoutRanges, "the server ignores byte ranges; copy the file to a disk"),
        (_WithoutLength, "does not say how large the file is"),
    ],
)
def test_what_a_web_server_cannot_do_is_told(
    server_of: type[_WithoutRanges],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'"one"\n')
    handler = functools.partial(server_of, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a.jsonl"

        assert run("write", tmp_path / "c_*.rox", url) == 1

        server.shutdown()
    error = capsys.readouterr().err
    assert error.startswith(f"roxxel-prepare: {url}: ")
    assert problem in error


def test_transient_failures_are_tried_again(bucket: Bucket, tmp_path: Path) -> None:
    data = json_lines(400)
    (bucket.folder / "raw" / "a.jsonl").write_bytes(data)
    bucket.set_faults(kinds=["503", "cut", "reset"], rate=0.3, keys="raw")

    options = "--unit-bytes", 2000
    assert run("write", tmp_path / "c_*.rox", f"{RAW}/a.jsonl", *options) == 0

    documents = [
        bytes(each).decode() for each in Roxxel(tmp_path / "c_*.rox").documents
    ]
    assert documents == [json.loads(line)["text"] for line in data.splitlines()]


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:" + b"4d7a2146" * 8 + b"\nsize 12345678\n"
)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.jsonl", b'"good"\nbad\n', ":2: not JSON ("),
        ("a.txt", b"\xff", ": not UTF-8 text (invalid start byte at byte 0)"),
        # Workers of pytest collect the same names only if the bytes hold no time.
        (
            "a.jsonl.gz",
            gzip.compress(b'"one"\n', mtime=0)[:-3],
            ": ends at byte 23, inside the",
        ),
        ("a.parquet", b"PAR1", ": not a Parquet file ("),
        ("a.ds", b"1234", ": has no a.ds.index beside it, which says where"),
        ("a.npy", b"1234", ": not a .npy file ("),
        *(
            (name, POINTER, ": is a pointer of Git LFS, ")
            for name in ("b.txt", "b.parquet", "b.arrow", "b.npy", "b.jsonl.zst")
        ),
    ],
)
def test_damage_names_the_url_and_the_position(
    bucket: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
    problem: str,
) -> None:
    (bucket.folder / "raw" / name).write_bytes(data)

    assert run("write", tmp_path / "c_*.rox", f"{RAW}/{name}") == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel-prepare: {RAW}/{name}{problem}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.parquet", json_lines(300)),
        ("a.parquet", gzip.compress(json_lines(3000), mtime=0)),
        ("a.arrow", parquet()),
        ("a.feather", json_lines(300)),
    ],
)
def test_another_content_than_the_name_says_is_told_as_of_a_local_file(
    bucket: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
    *,
    is_large: bool,
) -> None:
    options = "--unit-bytes", len(data) // 3 if is_large else "1M"
    (bucket.folder / "raw" / name).write_bytes(data)
    (tmp_path / name).write_bytes(data)

    assert run("write", tmp_path / "b_*.rox", f"{RAW}/{name}", *options) == 1
    assert run("write", tmp_path / "c_*.rox", tmp_path / name, *options) == 1

    remote, local = capsys.readouterr().err.splitlines()
    assert remote.replace(RAW, str(tmp_path)) == local


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ("s3://data/no", "s3://data/no: there is no such object or folder; check"),
        ("s3://data/no/*.txt", "s3://data/no/*.txt: no object matches the pattern"),
        (
            "https://host/*.txt",
            "https://host/*.txt: the objects of a web server cannot",
        ),
        ("https://host/raw/", "https://host/raw: the objects of a web server cannot"),
        ("https://host/a?key=word", "https://...: the URL has a password, a query"),
        ("ftp://host/a.txt", "ftp://: unknown kind of URL"),
    ],
)
def test_a_url_without_inputs_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: str, problem: str
) -> None:
    assert run("write", tmp_path / "c_*.rox", inputs) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"roxxel-prepare: {problem}")
    assert error.count("\n") == 1
    assert "word" not in error.replace("password", "")
