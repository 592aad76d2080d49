"""Writes into a bucket: whole, or not visible; no write takes another's shards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from limits import soon_given_up
from roxxel_format import BucketError, Roxxel
from roxxel_format.writing import Place

from .buckets import Bucket, running_bucket
from .commands import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "s3://data/texts/web_*.rox"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def bucket(server: Bucket) -> Bucket:
    server.set_faults()
    shutil.rmtree(server.folder)
    server.folder.mkdir()
    return server


def documents(seed: int, number: int = 300) -> list[Any]:
    chosen = np.random.default_rng(seed)
    sizes: list[int] = chosen.integers(1, 500, number).tolist()
    return [chosen.integers(1, 90, size, dtype=np.uint16) for size in sizes]


def names(bucket: Bucket) -> set[str]:
    return {path.name for path in bucket.folder.rglob("*.*")}


def test_a_corpus_equals_one_written_on_a_disk(tmp_path: Path) -> None:
    corpora = [Roxxel(URL), Roxxel(tmp_path / "web_*.rox")]
    for corpus in corpora:
        corpus.write(documents(0), separator=0, max_shard_bytes=40_000)
        corpus.write(documents(1, 9), separator=0, exist="append")
    remote, local = corpora

    assert remote.versions == local.versions
    assert np.array_equal(remote.tokens[:], local.tokens[:])
    assert remote.metadata == local.metadata
    assert remote.verify().ok


def test_a_corpus_in_a_bucket_is_split_into_two_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = Roxxel(URL)
    whole.write(documents(0), separator=0)
    outputs = [f"s3://data/kept/{name}*.rox" for name in ("web_", "web_held_")]

    assert main(["write", outputs[0], URL, "--split", "held=0.2"]) == 0

    kept, held = map(Roxxel, outputs)
    assert kept.num_documents + held.num_documents == whole.num_documents
    assert not [*tmp_path.iterdir()]


def test_a_split_into_the_folder_of_its_source_names_the_source(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    Roxxel(URL).write(documents(0), separator=0)
    before = names(bucket)

    assert main(["write", URL, URL, "--split", "held=0.2"]) == 1

    assert f"{URL}, the source of the split" in capsys.readouterr().err
    assert names(bucket) == before


def test_a_corpus_that_lacks_a_shard_is_not_kept(bucket: Bucket) -> None:
    Roxxel(URL).write(documents(0), separator=0, max_shard_bytes=40_000)
    lost = max(bucket.folder.rglob("*.rox"))
    lost.unlink()

    with pytest.raises(FileExistsError, match=f"{lost.name}.*missing"):
        Roxxel(URL).write(documents(0), separator=0, max_shard_bytes=40_000)


def test_no_temporary_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    Roxxel(URL).write(documents(0), separator=0, max_shard_bytes=40_000)

    assert not list(tmp_path.iterdir())


def test_an_existing_corpus_is_kept_replaced_or_an_error(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(URL)
    first = corpus.write(documents(0), separator=0)

    def unread() -> Iterator[Any]:
        raise AssertionError
        yield

    again = corpus.write(unread(), separator=0)
    assert again.kept
    assert again.paths == first.paths
    assert f" tokens of {URL}; " in capsys.readouterr().err
    with pytest.raises(FileExistsError, match="the corpus exists already"):
        corpus.write(documents(1), separator=0, exist="error")
    with pytest.raises(FileExistsError, match="made with other arguments"):
        corpus.write(documents(1), separator=1)
    corpus.write([[1, 2]], vocab_size=90, exist="replace")

    assert corpus.tokens[:].tolist() == [1, 2]
    assert len(names(bucket)) == 2
    with pytest.raises(ValueError, match="its separator is"):
        corpus.write([[3]], vocab_size=90, separator=0, exist="append")


def test_a_write_that_fails_leaves_nothing(bucket: Bucket) -> None:
    corpus = Roxxel(URL)
    corpus.write([[1]], vocab_size=90)
    before = names(bucket)

    def failing() -> Iterator[Any]:
        yield from documents(0)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        corpus.write(failing(), exist="append", max_shard_bytes=40_000)

    assert names(bucket) == before
    assert Roxxel(URL).tokens[:].tolist() == [1]


def test_appends_of_two_writers_are_both_there() -> None:
    Roxxel(URL).write([[1]], vocab_size=90)

    def append(token: int) -> None:
        for _ in range(5):
            Roxxel(URL).write([[token] * 3], vocab_size=90, exist="append")

    threads = [threading.Thread(target=append, args=(token,)) for token in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    tokens = Roxxel(URL).tokens[:].tolist()
    assert sorted(tokens) == [1] + [7] * 15 + [8] * 15
    assert len(Roxxel(URL).versions) == 11


def test_of_two_first_writes_one_is_an_error(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_bucket = type(Place.of(URL))
    both, commit = threading.Barrier(2, timeout=600), in_bucket.commit
    outcomes: list[str] = []

    def commit_at_once(place: Place, manifest: Any, **options: Any) -> bool:
        both.wait()
        return commit(place, manifest, **options)

    def write(token: int) -> None:
        try:
            Roxxel(URL).write([[token]], vocab_size=90)
            outcomes.append("written")
        except FileExistsError as error:
            outcomes.append(str(error))

    monkeypatch.setattr(in_bucket, "commit", commit_at_once)
    threads = [threading.Thread(target=write, args=(token,)) for token in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(outcomes) == "written"
    assert "another write was committed first" in min(outcomes)
    assert Roxxel(URL).num_tokens == 1
    assert len(names(bucket)) == 2


def test_a_killed_write_is_not_visible(bucket: Bucket, tmp_path: Path) -> None:
    Roxxel(URL).write([[1]], vocab_size=90)
    program = (
        "import sys; import numpy as np; from roxxel_format import Roxxel\n"
        "data = (np.full(20_000, 7, np.uint16) for _ in range(10**6))\n"
        "Roxxel(sys.argv[1]).write(data, exist='append', max_shard_bytes=50_000)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, URL], env=environment
    ) as child:
        deadline = time.monotonic() + 600
        while len(names(bucket)) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.kill()

    corpus = Roxxel(URL)
    assert corpus.tokens[:].tolist() == [1]
    corpus.write([[2]], vocab_size=90, exist="append")
    assert corpus.tokens[:].tolist() == [1, 2]


def test_clean_removes_only_what_is_old_and_unlisted(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(URL)
    corpus.write([[1]], vocab_size=90)
    folder = bucket.folder / "texts"
    left = folder / "web_0123456789ab_00000_000.rox"
    column = folder / "web_0123456789ab_00000_000.id.01234567.bin"
    other = folder / "web_more_0123456789ab_00000_000.rox"
    for path in (left, column, other):
        path.write_bytes(b"left")
    assert corpus.leftovers() == []
    old = time.time() - 8 * 86400
    for path in folder.iterdir():
        os.utime(path, (old, old))

    assert main(["clean", URL]) == 0

    removed = [f"s3://data/texts/{path.name}" for path in (column, left)]
    assert [
        line.split()[-1] for line in capsys.readouterr().out.splitlines()
    ] == removed
    assert not left.exists()
    assert other.exists()
    assert corpus.verify().ok


def test_a_server_that_refuses_is_one_error(bucket: Bucket) -> None:
    bucket.set_faults(kinds=["403"], methods=["PUT"])

    with pytest.raises(BucketError, match="access was refused"):
        Roxxel(URL).write([[1]], vocab_size=90)


def test_a_commit_that_is_refused_certainly_changed_nothing(bucket: Bucket) -> None:
    bucket.set_faults(kinds=["403"], methods=["PUT"], keys="manifest")

    with pytest.raises(BucketError, match="access was refused") as caught:
        Roxxel(URL).write([[1]], vocab_size=90)

    assert "may have taken effect" not in str(caught.value)


def test_a_server_that_refuses_to_list_says_so(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.set_faults(kinds=["403"])

    assert main(["write", URL, "s3://data/raw/*.jsonl"]) == 1

    error = capsys.readouterr().err
    assert error.startswith("roxxel-prepare: s3://data/")
    assert "access was refused; check the credentials and the region" in error


def test_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    arguments = ["write", URL, str(tmp_path / "a.jsonl"), "--field", "text"]

    assert main(arguments) == 0
    assert "wrote 6 tokens (uint8) in 2 documents" in capsys.readouterr().out
    assert Roxxel(URL).documents[1].tobytes() == b"two"
    assert main(arguments) == 0
    assert "kept 6 tokens" in capsys.readouterr().err


def test_parts_and_workers_give_the_bytes_of_a_disk(
    tmp_path: Path, bucket: Bucket
) -> None:
    rows = (f'{{"text": "{"ab" * (n % 40)}"}}\n' for n in range(400))
    (tmp_path / "a.jsonl").write_text("".join(rows), encoding="utf-8")
    options = [str(tmp_path / "a.jsonl"), "--unit-bytes", "4000", "--separator", "0"]
    assert main(["write", str(tmp_path / "web_*.rox"), *options]) == 0
    expected = {path.name: path.read_bytes() for path in tmp_path.glob("web_*")}

    def stored() -> dict[str, bytes]:
        folder = bucket.folder / "texts"
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    assert main(["write", URL, *options, "--workers", "2"]) == 0
    assert stored() == expected
    shutil.rmtree(bucket.folder / "texts")
    for member in (2, 0, 1, 0):
        assert main(["write", URL, *options, "--part", f"{member}/3"]) == 0
    assert main(["clean", URL]) == 0
    assert main(["write", URL, "--commit"]) == 0
    assert stored() == expected
    assert Roxxel(URL).verify().ok


def test_a_preparation_in_a_bucket_is_continued_or_given_up(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, text in enumerate((b"one", b"two", b"\xff")):
        (tmp_path / f"{number}.txt").write_bytes(text)
    command = ["write", URL, str(tmp_path / "*.txt"), "--unit-bytes", "1"]

    error = ""
    for _ in range(2):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "1 of 3 units failed; the other 2 are kept" in error
        assert "2.txt: not UTF-8 text" in error
    assert f"{URL}: 2 of 3 units are done already" in error
    (tmp_path / "2.txt").write_bytes(b"three")
    assert main(command) == 1
    assert "2.txt has 5 bytes, 1 recorded" in capsys.readouterr().err
    assert main(["clean", URL, "--abandon"]) == 0
    assert names(bucket) == set()
    assert main(command) == 0
    assert Roxxel(URL).num_documents == 3


@pytest.mark.parametrize("exist", ["keep", "append"])
def test_a_put_of_unknown_outcome_deletes_nothing(bucket: Bucket, exist: Any) -> None:
    """The put takes effect, but its answer is lost, and so is every later answer."""
    if exist == "append":
        Roxxel(URL).write([[1]], vocab_size=90)
    later = {"kinds": ["503"]}
    bucket.set_faults(kinds=["lost"], methods=["PUT"], keys="manifest", then=later)

    with (
        soon_given_up(),
        pytest.raises(BucketError, match="may have taken effect: compare the corpus"),
    ):
        Roxxel(URL).write([[2]], vocab_size=90, exist=exist)

    bucket.set_faults()
    assert Roxxel(URL).verify().ok
    assert Roxxel(URL).tokens[:].tolist()[-1] == 2


def test_an_append_whose_answer_was_lost_is_a_success(bucket: Bucket) -> None:
    Roxxel(URL).write([[1]], vocab_size=90)
    bucket.set_faults(kinds=["lost"], rate=0.5, methods=["PUT"], seed=3)

    def append(token: int) -> None:
        for _ in range(4):
            Roxxel(URL, timeout_s=120).write([[token]], vocab_size=90, exist="append")

    threads = [threading.Thread(target=append, args=(token,)) for token in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    bucket.set_faults()
    assert sorted(Roxxel(URL).tokens[:].tolist()) == [1, 7, 7, 7, 7, 8, 8, 8, 8]


def test_clean_without_a_manifest_removes_nothing(bucket: Bucket) -> None:
    Roxxel(URL).write([[1]], vocab_size=90)
    (bucket.folder / "texts" / "web_manifest.json").unlink()
    old = time.time() - 8 * 86400
    for path in (bucket.folder / "texts").iterdir():
        os.utime(path, (old, old))

    assert Roxxel(URL).remove_leftovers() == []
    assert len(names(bucket)) == 1


def test_a_bucket_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(OSError, match="s3://none") as caught:
        _ = Roxxel("s3://none/web_*.rox", timeout_s=1).num_tokens

    assert "<Error>" not in str(caught.value)


def test_prompts_and_completions_have_their_mask_in_a_bucket(
    tmp_path: Path, bucket: Bucket
) -> None:
    rows = [{"prompt": "q" * (n % 90), "completion": "a" * (n % 7)} for n in range(900)]
    corpora = [Roxxel(URL), Roxxel(tmp_path / "web_*.rox")]
    for corpus in corpora:
        for exist in ("error", "append"):
            corpus.write(
                rows,
                separator=0,
                max_shard_bytes=20_000,
                prompt="prompt",
                completion="completion",
                exist=exist,
            )
    remote, local = corpora

    assert remote.num_shards > 2
    assert remote.fingerprint == local.fingerprint
    expected = local.column("loss_mask")[:]
    assert np.array_equal(remote.column("loss_mask")[:], expected)
    assert np.array_equal(expected == 1, local.tokens[:] != ord("q"))
    assert remote.verify().ok
    assert len(names(bucket)) == 2 * remote.num_shards + 1


def test_units_with_prompts_give_the_same_files_in_a_bucket(
    tmp_path: Path, bucket: Bucket
) -> None:
    source = tmp_path / "d.jsonl"
    line = '{"prompt": "what?", "completion": "that"}\n'
    source.write_text(line * 50, encoding="utf-8")
    fields = "--prompt", "prompt", "--completion", "completion", "--separator", "0"
    options = [str(source), *fields, "--unit-bytes", "500"]

    for target in (URL, str(tmp_path / "web_*.rox")):
        assert main(["write", target, *options]) == 0

    written = {path.name: path.read_bytes() for path in tmp_path.glob("web_*.*")}
    assert len(written) > 5
    assert written == {
        path.name: path.read_bytes() for path in bucket.folder.rglob("w*.*")
    }


def test_ids_are_written_to_and_found_in_a_bucket(bucket: Bucket) -> None:
    del bucket
    rows = [{"text": f"text {n}", "id": f"web/{n}"} for n in range(50)]
    corpus = Roxxel(URL)

    corpus.write(rows, separator=0, document_id="id")

    assert corpus.document_name(7) == "web/7"
    assert corpus.find_documents("web/49") == [49]
    assert corpus.column("id")[3:5].tolist() == ["web/3", "web/4"]
    assert corpus.verify().ok


def test_text_is_read_by_the_tokenizer_that_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = import_module("tokenizers")
    path = tmp_path / "tokenizer.json"
    model = library.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?")
    library.Tokenizer(model).save(str(path))
    Roxxel(URL).write(["b"], tokenizer=path, separator=None)
    path.unlink()

    assert main(["cat", URL]) == 0
    assert capsys.readouterr().out == "b\n"
