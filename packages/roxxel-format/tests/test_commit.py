"""A corpus is its manifest: what is there after every write that ends in any way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_format import Roxxel, ShardError, ShardWriter
from roxxel_format.cli import main
from roxxel_store import files

from .helpers import (
    child_of,
    corpus_of,
    documents_of,
    ending_of,
    in_child,
    line_of,
    listed,
    names_in,
    shard_at,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def tokens_of(folder: Path) -> list[int]:
    return Roxxel(folder / "c_*.rox").tokens[:].tolist()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_append_whose_name_is_not_flushed_says_that_it_may_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is replaced before its folder is flushed: a repeat adds twice."""
    corpus = corpus_of(tmp_path, documents_of(3))
    manifest = tmp_path / "c_manifest.json"
    before = manifest.read_bytes()
    publish = files.Output.publish

    def publish_and_fail(output: files.Output) -> None:
        publish(output)
        if manifest.read_bytes() != before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.Output, "publish", publish_and_fail)
    with pytest.raises(OSError, match=r"c_manifest.json: .* may have taken effect"):
        corpus.write(documents_of(2), exist="append", separator=None)

    assert len(Roxxel(tmp_path / "c_*.rox").documents) == 2


def test_manifest_lists_what_the_feet_of_the_shards_say(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[1000] * 40), separator=b"\1")

    manifest = listed(tmp_path)

    shards = [shard_at(path) for path in corpus.paths]
    layouts = [shard.layout for shard in shards]
    assert len(shards) > 4
    table = manifest["shards"]
    assert table["names"] == [Path(path).name for path in corpus.paths]
    assert table["bytes"] == [Path(p).stat().st_size for p in corpus.paths]
    assert table["tokens"] == [layout.num_tokens for layout in layouts]
    assert table["least"] == [layout.min_value for layout in layouts]
    assert table["digests"] == [layout.digest.hex() for layout in layouts]
    assert (manifest["dtype"], manifest["block_size"]) == ("uint16", 512)
    assert manifest["separator"] == [1]
    assert manifest["versions"]["fingerprints"] == [corpus.fingerprint]
    assert manifest["versions"]["tokens"] == [corpus.num_tokens]
    assert manifest["writes"][0]["arguments"]["separator"] == {"bytes": "01"}


def test_append_makes_a_version_of_the_corpus(tmp_path: Path) -> None:
    first = corpus_of(tmp_path, [[1, 2]], vocab_size=9).fingerprint
    second = corpus_of(tmp_path, [[3]], vocab_size=9, exist="append").fingerprint

    versions = listed(tmp_path)["versions"]

    assert versions["fingerprints"] == [first, second]
    assert (versions["tokens"], versions["documents"]) == ([2, 3], [1, 2])
    assert tokens_of(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dtype": "uint32"},
            "its dtype is uint16, but uint32 of the new documents",
        ),
        (
            {"separator": 3},
            r"its separator is \[7\], but \[3\] of the new documents; append",
        ),
        (
            {"separator": None},
            r"its separator is \[7\], but \[\] of the new documents; append w",
        ),
    ],
)
def test_append_of_other_kinds_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    corpus_of(tmp_path, [[1, 2]], dtype="uint16", separator=7)
    before = names_in(tmp_path)

    with pytest.raises(ValueError, match=message):
        corpus_of(tmp_path, [[1]], exist="append", **({"separator": 7} | options))

    assert names_in(tmp_path) == before


def test_replace_writes_new_names_and_removes_the_old_shards(tmp_path: Path) -> None:
    old = corpus_of(tmp_path, documents_of(*[2000] * 4))
    before = old.fingerprint

    with pytest.raises(KeyboardInterrupt):
        corpus_of(tmp_path, interrupted(*documents_of(6000)), exist="replace")
    assert Roxxel(old.filepath).fingerprint == before
    new = corpus_of(tmp_path, documents_of(40, seed=1), exist="replace")

    assert short(names_in(tmp_path)) == ["c_000.rox", "c_manifest.json"]
    assert np.array_equal(new.tokens[:], line_of(documents_of(40, seed=1)))


def interrupted(*documents: object) -> Iterator[object]:
    yield from documents
    raise KeyboardInterrupt


def test_replace_that_cannot_publish_leaves_the_old_corpus_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = documents_of(*[2000] * 4)
    before = corpus_of(tmp_path, documents).paths
    assert len(before) == 4
    real = Path.replace

    def broken(path: Path, target: Path) -> Path:
        if target.name == "c_manifest.json":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        with pytest.raises(OSError, match="Input/output error"):
            corpus_of(tmp_path, documents_of(40, seed=1), exist="replace")

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert corpus.paths == before
    assert np.array_equal(corpus.tokens[:], line_of(documents))
    assert corpus.leftovers() == []


def killed_write(folder: Path, exist: str = "keep") -> None:
    """Write a corpus in a child that is killed when it has written some shards."""

    def killed() -> Iterator[object]:
        yield from documents_of(*[3000] * 4)
        kill_self()

    code = in_child(lambda: corpus_of(folder, killed(), exist=exist))
    assert code == -signal.SIGKILL


def test_interrupted_first_write_is_not_a_corpus(tmp_path: Path) -> None:
    killed_write(tmp_path)
    assert "c_000.rox" in short(names_in(tmp_path))
    with pytest.raises(ShardError, match=r"has no manifest.*interrupted.*repeat it"):
        _ = Roxxel(tmp_path / "c_*.rox").num_tokens

    corpus = corpus_of(tmp_path, documents_of(9000))

    assert np.array_equal(corpus.tokens[:], line_of(documents_of(9000)))
    assert corpus.leftovers() == []
    assert names_in(tmp_path) == sorted(
        [*(Path(path).name for path in corpus.paths), "c_manifest.json"]
    )


def test_clean_keeps_shards_without_a_manifest_until_they_are_given_up(
    tmp_path: Path,
) -> None:
    """Perhaps only the manifest is lost."""
    killed_write(tmp_path)
    corpus = Roxxel(tmp_path / "c_*.rox")
    shards = [name for name in names_in(tmp_path) if not name.startswith(".")]

    drafts = corpus.remove_leftovers()

    assert shards
    assert all(path.endswith(".partial") for path in drafts)
    assert names_in(tmp_path) == shards
    assert [Path(each).name for each in corpus.remove_leftovers(abandon=True)] == shards
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(("written", "cleaned"), [("*.rox", ""), ("", "*.rox")])
def test_a_folder_and_the_pattern_of_all_shards_in_it_are_one_corpus(
    tmp_path: Path, written: str, cleaned: str
) -> None:

    def killed() -> Iterator[object]:
        yield from documents_of(*[3000] * 4)
        kill_self()

    def write() -> None:
        Roxxel(tmp_path / written).write(
            killed(), dtype="uint16", max_shard_bytes=20_000, separator=None
        )

    assert in_child(write) == -signal.SIGKILL

    for spelling in (written, cleaned):
        with pytest.raises(ShardError, match="has no manifest"):
            _ = Roxxel(tmp_path / spelling).num_tokens
    assert Roxxel(tmp_path / cleaned).remove_leftovers(abandon=True)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("num_documents", [0, 1])
@pytest.mark.parametrize("exist", ["keep", "append", "error", "replace"])
def test_a_first_write_that_fails_leaves_only_a_lock(
    exist: Any, num_documents: int, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Roxxel(tmp_path / "c_*.rox").write(
            interrupted(*documents_of(9)[:num_documents]), exist=exist
        )

    assert [path.name for path in tmp_path.iterdir()] == [".c_manifest.json.writers"]


def test_first_writes_of_many_processes_that_fail_or_not_lose_no_append(
    tmp_path: Path,
) -> None:
    def append(number: int) -> None:
        corpus = Roxxel(tmp_path / "c_*.rox")
        for turn in range(20):
            with pytest.raises(KeyboardInterrupt):
                corpus.write(interrupted(), exist="append")
            if turn == 10:
                corpus.write([[number]], exist="append")

    children = [child_of(partial(append, number)) for number in range(8)]
    assert [*map(ending_of, children)] == [0] * 8

    corpus = Roxxel(tmp_path / "c_*.rox")
    assert sorted(corpus.tokens[:].tolist()) == list(range(8))


def test_an_append_takes_no_shard_of_a_write_that_began_meanwhile_for_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    listdir = os.listdir

    def list_after_another_write(folder: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", listdir)
        corpus.write([[1]], exist="append")
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", list_after_another_write)
    corpus.write([[2]], exist="append")

    assert corpus.tokens[:].tolist() == [1, 2]


def test_write_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        corpus_of(tmp_path, interrupted(*documents_of(9000, 9000)))

    assert names_in(tmp_path) == []


@pytest.mark.parametrize("failing", range(1, 12))
def test_append_that_is_interrupted_while_a_name_is_synced_is_whole_or_nothing(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus_of(tmp_path, [[1]])
    num_synced = 0

    def interrupt(_: int) -> None:
        nonlocal num_synced
        num_synced += 1
        if num_synced == failing:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            corpus_of(tmp_path, [[2] * 5000] * 3, exist="append")

    assert tokens_of(tmp_path) in ([1], [1] + [2] * 15_000)
    assert Roxxel(tmp_path / "c_*.rox").leftovers() == []


APPENDER = """
import os, sys
os.fsync = lambda fd: None
from roxxel_format import Roxxel
for number in range(20):
    Roxxel(sys.argv[1]).write([[int(sys.argv[2]) + number]], exist="append")
    print(number, flush=True)
"""


def test_two_processes_append_at_once_and_lose_nothing(tmp_path: Path) -> None:
    pattern = str(tmp_path / "c_*.rox")
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", APPENDER, pattern, str(first)],
            stdout=subprocess.PIPE,
        )
        for first in (0, 100)
    ]
    for child in children:
        output, _ = child.communicate()
        assert child.returncode == 0
        assert len(output.split()) == 20

    tokens = tokens_of(tmp_path)

    assert [each for each in tokens if each < 100] == list(range(20))
    assert [each for each in tokens if each >= 100] == list(range(100, 120))
    assert len(listed(tmp_path)["versions"]["tokens"]) == 40


def test_append_that_loses_commits_on_the_newer_manifest(tmp_path: Path) -> None:
    def nested() -> Iterator[object]:
        yield [2]
        corpus_of(tmp_path, [[3]], exist="append")

    corpus_of(tmp_path, [[1]])
    corpus_of(tmp_path, nested(), exist="append")

    assert tokens_of(tmp_path) == [1, 3, 2]


@pytest.mark.parametrize("exist", ["keep", "replace", "error"])
def test_other_write_that_loses_is_an_error(exist: str, tmp_path: Path) -> None:
    def nested() -> Iterator[object]:
        yield [2]
        corpus_of(tmp_path, [[3]], exist="append")

    if exist == "replace":
        corpus_of(tmp_path, [[1]])

    with pytest.raises(FileExistsError, match="another write was committed first, so"):
        corpus_of(tmp_path, nested(), exist=exist)

    assert tokens_of(tmp_path) == ([1, 3] if exist == "replace" else [3])
    assert Roxxel(tmp_path / "c_*.rox").leftovers() == []


@pytest.mark.parametrize("name", [".hidden", "a\nb", "a\tb", "a\\b", "a:b", "a\x7f"])
def test_a_name_that_no_manifest_can_list_is_refused_before_the_write(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cannot list such names"):
        Roxxel(tmp_path / f"{name}_*.rox").write([[1]], dtype="uint8")

    assert [*tmp_path.iterdir()] == []


def test_a_replace_that_a_compaction_precedes_is_committed(tmp_path: Path) -> None:
    def nested() -> Iterator[object]:
        yield [1]
        assert Roxxel(tmp_path / "c_*.rox").compact().num_merged == 2

    for exist in ("error", "append"):
        corpus_of(tmp_path, [[1]], exist=exist)

    corpus_of(tmp_path, nested(), exist="replace")

    assert tokens_of(tmp_path) == [1]
    assert Roxxel(tmp_path / "c_*.rox").leftovers() == []


def test_a_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    single = Roxxel(tmp_path / "a.rox")

    def nested_single() -> Iterator[object]:
        yield [1]
        with pytest.raises(BlockingIOError, match=r"a\.rox: a write of this corpus is"):
            Roxxel(tmp_path / "a.rox").write([[2]])

    single.write(nested_single())
    assert single.tokens[:].tolist() == [1]


@pytest.mark.parametrize("name", ["c_*.rox", "a.rox"])
def test_clean_takes_nothing_of_a_living_writer(name: str, tmp_path: Path) -> None:
    def documents() -> Iterator[object]:
        yield from documents_of(100, 100)
        with pytest.raises(BlockingIOError, match="is in progress; wait for it"):
            Roxxel(tmp_path / name).remove_leftovers()

    corpus = Roxxel(tmp_path / name)
    corpus.write(documents())

    assert np.array_equal(corpus.tokens[:], line_of(documents_of(100, 100)))
    assert corpus.remove_leftovers() == []


def test_clean_takes_only_files_of_its_corpus(tmp_path: Path) -> None:
    corpus_of(tmp_path, [[1]])
    others = [
        "c_1.rox",
        "c_00001.txt",
        "d_00001.rox",
        "c_00000.id.12345678.bin",
        "c_00009.rox",
        ".c_00010.rox.partial",
        "c_0123456789ab_00000.rox",
        ".x",
        ".d_00001.rox.partial",
        "c_en_00001.rox",
    ]
    (shard,) = (Path(path).stem for path in Roxxel(tmp_path / "c_*.rox").paths)
    left = [
        f"{shard}.id.12345678.bin",
        f".{shard}.id.12345678.bin.partial",
        ".c_manifest.json.partial",
        ".c_0123456789ab_00001_000.rox~89abcdef.partial",
        "c_0123456789ab_00000_001.rox",
        "c_0123456789ab_00000_001.id.12345678.bin",
    ]
    for name in [*others, *left]:
        (tmp_path / name).write_bytes(b"")
    corpus = Roxxel(tmp_path / "c_*.rox")
    expected = sorted(left)

    assert sorted(Path(path).name for path in corpus.leftovers()) == expected
    assert sorted(Path(p).name for p in corpus.remove_leftovers()) == expected

    kept = sorted([*others, f"{shard}.rox", "c_manifest.json"])
    assert names_in(tmp_path) == kept
    assert tokens_of(tmp_path) == [1]


def test_a_leftover_that_cannot_be_removed_is_named_and_the_others_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write([[1]], vocab_size=9)
    stays, goes = (tmp_path / f"c_{'a' * 12}_00000_00{n}.rox" for n in range(2))
    stays.mkdir()  # No user may unlink a folder.
    goes.write_bytes(b"")

    assert main(["clean", str(tmp_path / "c_*.rox")]) == 1

    said = capsys.readouterr()
    assert "removed" not in said.out
    assert str(stays) in said.err
    assert said.err.count("\n") == 1
    assert stays.exists()
    assert not goes.exists()


def test_file_system_without_flock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for name in ("c_*.rox", "a.rox"):
        with pytest.raises(OSError, match="has no working flock, so two writers would"):
            Roxxel(tmp_path / name).write([[1]])

    assert not list(tmp_path.glob("*.rox"))


def test_keep_compares_the_arguments_of_every_version(tmp_path: Path) -> None:
    limit = {"vocab_size": 50, "max_shard_bytes": 20_000}
    corpus_of(tmp_path, [[1]], vocab_size=50)
    corpus_of(tmp_path, [[2]], exist="append", **limit)

    first = "version 1 of 2 was made with other .*_bytes is 12000 in the corpus"
    with pytest.raises(FileExistsError, match=first):
        corpus_of(tmp_path, untouchable(), **limit)
    with pytest.raises(FileExistsError, match=r"version 2 .*_bytes is 20000 in the c"):
        corpus_of(tmp_path, untouchable(), vocab_size=50)
    Roxxel(tmp_path / "c_*.rox").compact()
    with pytest.raises(FileExistsError, match=first):
        corpus_of(tmp_path, untouchable(), **limit)


def test_keep_keeps_what_several_writes_of_one_recipe_made(tmp_path: Path) -> None:
    for exist in ("error", "append"):
        corpus_of(tmp_path, [[1]], exist=exist, vocab_size=50)

    for _ in range(2):
        corpus = corpus_of(tmp_path, untouchable(), vocab_size=50)
        assert corpus.num_tokens == 2
        corpus.compact()


def untouchable() -> Iterator[object]:
    raise AssertionError("the generator was touched")
    yield


def test_corpus_that_lacks_a_shard_is_not_kept(tmp_path: Path) -> None:
    paths = corpus_of(tmp_path, documents_of(*[3000] * 3)).paths
    Path(paths[1]).unlink()

    with pytest.raises(
        FileExistsError, match=r"c_\w+_001\.rox: a shard of the corpus is"
    ):
        corpus_of(tmp_path, untouchable())


def test_only_replace_goes_past_a_damaged_manifest(tmp_path: Path) -> None:
    corpus_of(tmp_path, [[1]])
    path = tmp_path / "c_manifest.json"
    path.write_bytes(path.read_bytes().replace(b"uint32", b"uint16"))

    for exist in ("keep", "append", "error"):
        with pytest.raises(ShardError, match="does not match its checksum"):
            corpus_of(tmp_path, [[2]], exist=exist)
    corpus_of(tmp_path, [[2]], exist="replace")

    assert tokens_of(tmp_path) == [2]
    assert short(names_in(tmp_path)) == ["c_000.rox", "c_manifest.json"]


def test_a_file_that_is_not_a_manifest_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"name": "a web app"}')

    for exist in ("keep", "append", "error", "replace"):
        with pytest.raises(ShardError, match="not a manifest of a Roxxel corpus; move"):
            Roxxel(tmp_path).write([[1]], exist=exist)

    assert path.read_text() == '{"name": "a web app"}'


def test_single_file_records_its_arguments(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox")
    corpus.write([[1]], vocab_size=9)

    assert corpus.metadata["arguments"]["vocab_size"] == 9
    assert corpus.write(untouchable(), vocab_size=9).kept
    with pytest.raises(FileExistsError, match="vocab_size is 9 in the corpus, 8 given"):
        corpus.write(untouchable(), vocab_size=8)
    assert names_in(tmp_path) == ["a.rox"]


def test_killed_write_of_a_single_file_leaves_a_draft_that_the_next_takes_over(
    tmp_path: Path,
) -> None:
    def killed() -> Iterator[object]:
        yield [1]
        kill_self()

    corpus = Roxxel(tmp_path / "a.rox")
    in_child(lambda: corpus.write(killed()))

    assert [Path(path).name for path in corpus.leftovers()] == [".a.rox.partial"]
    corpus.write([[2]])
    assert corpus.tokens[:].tolist() == [2]
    assert names_in(tmp_path) == ["a.rox"]


def test_sync_on_macos_flushes_the_cache_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def noted(_fd: int, command: int, *_: object) -> int:
        calls.append(command)
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", noted)

    with ShardWriter(tmp_path / "a.rox", "uint8") as writer:
        writer.append(np.array([1]))

    assert calls == [51, 51]  # the file and the folder


def test_sync_on_macos_without_full_sync_is_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = errno.ENOTSUP

    def refuse(*_: object) -> int:
        raise OSError(code, "refused")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)

    Roxxel(tmp_path / "a.rox").write([[1]])
    assert Roxxel(tmp_path / "a.rox").num_tokens == 1
    code = errno.EIO
    with pytest.raises(OSError, match="the new file was discarded"):
        Roxxel(tmp_path / "b.rox").write([[1]])


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "replace"]),
        st.lists(st.integers(0, 6000), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(writes=WRITES)
def test_every_version_is_the_documents_that_were_written_until_then(
    writes: list[tuple[str, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    line: list[Any] = []
    lines: list[list[Any]] = []
    for number, (exist, lengths) in enumerate(writes):
        documents = documents_of(*lengths, seed=number)
        line = documents if exist == "replace" else [*line, *documents]
        lines = [line] if exist == "replace" else [*lines, line]
        corpus = corpus_of(folder, documents, dtype="uint16", exist=exist)
        assert np.array_equal(corpus.tokens[:], line_of(line))

    manifest = listed(folder)
    names = manifest["shards"]["names"]
    assert names_in(folder) == sorted([*names, "c_manifest.json"])
    bounds = [*accumulate(manifest["shards"]["tokens"])]
    versions = manifest["versions"]
    rows = zip(versions["fingerprints"], versions["tokens"], lines, strict=True)
    for fingerprint, num_tokens, expected in rows:
        old = Roxxel(folder / "c_*.rox", version=fingerprint)
        assert np.array_equal(old.tokens[:], line_of(expected))
        assert old.num_documents == len(expected)
        if bounds.count(num_tokens) == 1:  # Else empty documents follow.
            paths = [folder / name for name in names[: bounds.index(num_tokens) + 1]]
            assert Roxxel(paths).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("first", "second"), [([b"a"], [[1]]), ([np.array([1], np.uint8)], ["a"])]
)
def test_text_and_ready_made_tokens_do_not_mix_across_appends(
    first: list[Any], second: list[Any], tmp_path: Path
) -> None:
    corpus = Roxxel(tmp_path / "c_*.rox")
    corpus.write(first)

    with pytest.raises(TypeError, match=r"but the corpus holds (text|tokens); write"):
        corpus.write(second, exist="append")

    assert len(Roxxel(tmp_path / "c_*.rox").documents) == 1
    assert corpus.leftovers() == []


@pytest.mark.parametrize(("folder", "lock"), [(0o775, 0o660), (0o777, 0o666)])
def test_locks_are_open_to_whoever_may_write_in_the_folder(
    tmp_path: Path, folder: int, lock: int
) -> None:
    tmp_path.chmod(folder)
    before = os.umask(0o077)
    try:
        Roxxel(tmp_path / "c_*.rox").write([[1]], vocab_size=9)
    finally:
        os.umask(before)

    for name in (".c_manifest.json.lock", ".c_manifest.json.writers"):
        assert (tmp_path / name).stat().st_mode & 0o777 & lock == lock


def test_locks_in_a_folder_of_one_user_stay_the_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    before = os.umask(0o022)
    try:
        Roxxel(tmp_path / "c_*.rox").write([[1]], vocab_size=9)
    finally:
        os.umask(before)

    path = tmp_path / ".c_manifest.json.writers"
    assert path.stat().st_mode & 0o777 == 0o644
