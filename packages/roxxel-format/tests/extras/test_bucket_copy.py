"""Copies of corpora between disks and buckets: whole and verified, or not visible."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from roxxel_format import BucketError, Roxxel, ShardError
from roxxel_format._write.place import Place
from roxxel_format.cli import main

from .buckets import Bucket, running_bucket, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_format._spec.manifest import Manifest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with running_bucket(tmp_path_factory.mktemp("bucket")) as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    server.set_faults()
    shutil.rmtree(server.folder)
    server.folder.mkdir()
    return server


def documents(seed: int, number: int = 300) -> list[Any]:
    chosen = np.random.default_rng(seed)
    sizes: list[int] = chosen.integers(1, 500, number).tolist()
    return [chosen.integers(1, 90, size, dtype=np.uint16) for size in sizes]


@pytest.fixture
def corpus(tmp_path: Path) -> Roxxel:
    corpus = Roxxel(tmp_path / "wiki_*.rox")
    corpus.write(documents(0), separator=0, max_shard_bytes=40_000)
    corpus.write_column("id", np.arange(300), per="document")
    corpus.write_column("loss_mask", np.ones(corpus.num_tokens, np.uint8))
    return corpus


def same(one: Roxxel, other: Roxxel) -> bool:
    """Whether two corpora are equal: tokens, versions, columns; both undamaged."""
    assert one.verify().ok
    assert other.verify().ok
    assert one.columns == other.columns
    for name in one.columns:
        assert one.column(name).digest == other.column(name).digest
        assert np.array_equal(one.column(name)[:], other.column(name)[:])
    assert one.versions == other.versions
    assert one.metadata == other.metadata
    return np.array_equal(one.tokens[:], other.tokens[:])


@pytest.mark.usefixtures("bucket")
def test_a_shard_is_repaired_from_a_copy_in_a_bucket(
    corpus: Roxxel, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = corpus.copy_to("s3://data/texts/web_*.rox").paths
    shard, right = Path(corpus.paths[0]), Path(corpus.paths[0]).read_bytes()
    shard.write_bytes(right[:5000] + b"!!" + right[5002:])

    assert main(["verify", str(shard), "--repair", copies[1]]) == 1
    assert "so nothing was changed" in capsys.readouterr().err
    assert main(["verify", str(shard), "--repair", copies[0]]) == 0

    assert shard.read_bytes() == right


@pytest.mark.usefixtures("bucket")
def test_a_copy_and_its_copy_equal_the_source(corpus: Roxxel, tmp_path: Path) -> None:
    summary = corpus.copy_to("s3://data/texts/web_*.rox")
    remote = Roxxel("s3://data/texts/web_*.rox")
    remote.copy_to("s3://data/folder")
    Roxxel("s3://data/folder").copy_to(tmp_path / "back_*.rox")

    assert summary.num_tokens == corpus.num_tokens
    assert list(summary.paths) == remote.paths
    assert not summary.kept
    assert same(remote, corpus)
    assert same(Roxxel("s3://data/folder"), corpus)
    assert same(Roxxel(tmp_path / "back_*.rox"), corpus)
    assert not Roxxel(tmp_path / "back_*.rox").leftovers()


def test_copies_on_one_disk(corpus: Roxxel, tmp_path: Path) -> None:
    corpus.copy_to(tmp_path / "other_*.rox")
    Roxxel(tmp_path / "single.rox").write([[1, 2]], vocab_size=90)
    single = Roxxel(tmp_path / "single.rox")
    single.copy_to(tmp_path / "several_*.rox")
    both = Roxxel([corpus.filepath, single.filepath])  # pyright: ignore[reportArgumentType] - both are one path
    both.copy_to(tmp_path / "both_*.rox")

    assert same(Roxxel(tmp_path / "other_*.rox"), corpus)
    assert Roxxel(tmp_path / "several_*.rox").tokens[:].tolist() == [1, 2]
    copied = Roxxel(tmp_path / "both_*.rox")
    assert np.array_equal(copied.tokens[:], both.tokens[:])
    assert copied.fingerprint == both.fingerprint


def test_a_repeated_copy_adds_only_what_is_new(bucket: Bucket, corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    before = {path.name: path.stat().st_mtime_ns for path in bucket.folder.iterdir()}
    version = corpus.fingerprint

    again = corpus.copy_to("s3://data/web_*.rox")
    corpus.write(
        documents(1, 5), separator=0, exist="append", without_columns=corpus.columns
    )
    corpus.copy_to("s3://data/web_*.rox")

    assert again.kept
    after = {path.name: path.stat().st_mtime_ns for path in bucket.folder.iterdir()}
    changed = [name for name in before if before[name] != after[name]]
    assert changed == ["web_manifest.json"]
    assert len(after) == len(before) + 1
    assert same(Roxxel("s3://data/web_*.rox"), corpus)
    earlier = Roxxel("s3://data/web_*.rox", version=version)
    assert np.array_equal(earlier.tokens[:], corpus.with_version(version).tokens[:])


def test_a_corpus_in_a_bucket_is_compacted(bucket: Bucket, corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    mask = corpus.column("loss_mask").digest

    assert main(["clean", "--compact", "s3://data/web_*.rox"]) == 0

    names = sorted(path.name for path in bucket.folder.iterdir())
    assert len(names) == 4  # manifest, shard, two columns
    old = Roxxel("s3://data/web_*.rox", version=corpus.fingerprint)
    assert np.array_equal(old.tokens[:], corpus.tokens[:])
    assert np.array_equal(old.column("id")[:], corpus.column("id")[:])
    assert old.column("loss_mask").digest == mask
    assert old.verify().ok


@pytest.mark.usefixtures("bucket")
def test_a_reader_of_merged_objects_is_told_of_the_compaction(corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    opened = Roxxel("s3://data/web_*.rox")
    names = opened.column("id")
    assert (opened.tokens[0], names[0]) == (corpus.tokens[0], corpus.column("id")[0])

    Roxxel("s3://data/web_*.rox").compact()

    for read in (lambda: opened.tokens[:], lambda: names[:]):
        with pytest.raises(ShardError, match=r"missing.*compacted.*open the corpus ag"):
            read()


def test_files_that_were_copied_by_hand_stay(bucket: Bucket, corpus: Roxxel) -> None:
    for path in (corpus_folder(corpus)).iterdir():
        if not path.name.startswith("."):
            shutil.copy(path, bucket.folder)

    assert corpus.copy_to("s3://data/wiki_*.rox").kept


def corpus_folder(corpus: Roxxel) -> Path:
    from pathlib import Path

    return Path(corpus.paths[0]).parent


def test_another_corpus_is_replaced_only_if_asked(
    bucket: Bucket, corpus: Roxxel, tmp_path: Path
) -> None:
    other = Roxxel(tmp_path / "other_*.rox")
    other.write([[7] * 9], vocab_size=90)
    for target in ("s3://data/web_*.rox", str(tmp_path / "copy_*.rox")):
        other.copy_to(target)

        with pytest.raises(FileExistsError, match="another corpus exists there"):
            corpus.copy_to(target)
        assert Roxxel(target).tokens[:].tolist() == [7] * 9
        corpus.copy_to(target, exist="replace")

        assert same(Roxxel(target), corpus)
    names = {path.name for path in bucket.folder.iterdir()}
    assert len(names) == 1 + 3 * corpus.num_shards


@pytest.mark.usefixtures("bucket")
def test_the_source_is_no_target(corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox", exist="replace")
    remote = Roxxel("s3://data/web_*.rox")

    for each in (corpus, remote):
        with pytest.raises(ValueError, match="is the source of this copy"):
            each.copy_to(str(each.filepath), exist="replace")


def test_the_source_is_no_target_through_a_link_either(
    corpus: Roxxel, tmp_path: Path
) -> None:
    path = Path(str(corpus.filepath))
    link = tmp_path / "link"
    link.symlink_to(path.parent)

    for source, target in ((path, link / path.name), (link / path.name, path)):
        with pytest.raises(ValueError, match="is the source of this copy"):
            Roxxel(source).copy_to(target, exist="replace")


@pytest.mark.parametrize("target", ["s3://data/one.rox", "one.rox"])
def test_one_file_is_no_target(corpus: Roxxel, tmp_path: Path, target: str) -> None:
    if "://" not in target:
        target = str(tmp_path / target)
    with pytest.raises(ValueError, match=r"one_\*\.rox"):
        corpus.copy_to(target)


def test_a_damaged_source_is_not_copied(bucket: Bucket, corpus: Roxxel) -> None:
    from pathlib import Path

    shard = Path(corpus.paths[1])
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)

    with pytest.raises(ShardError, match="is damaged and was not copied"):
        corpus.copy_to("s3://data/web_*.rox")

    assert not (bucket.folder / "web_manifest.json").exists()


def test_wrong_bytes_on_their_way_are_not_copied(
    bucket: Bucket, corpus: Roxxel, tmp_path: Path
) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    remote = Roxxel("s3://data/web_*.rox")
    assert remote.num_tokens
    bucket.set_faults(kinds=["wrong"], keys=r"\.rox$")

    with pytest.raises((ShardError, BucketError)):
        remote.copy_to(tmp_path / "back_*.rox")

    with pytest.raises(FileNotFoundError):
        _ = Roxxel(tmp_path / "back_*.rox").num_tokens
    bucket.set_faults()
    remote.copy_to(tmp_path / "back_*.rox")
    assert same(Roxxel(tmp_path / "back_*.rox"), corpus)


@pytest.mark.parametrize("kind", ["503", "reset", "lost"])
def test_failures_that_pass_are_repeated(
    bucket: Bucket, corpus: Roxxel, kind: str
) -> None:
    bucket.set_faults(kinds=[kind], rate=0.3, seed=2)

    corpus.copy_to("s3://data/web_*.rox")

    bucket.set_faults()
    assert same(Roxxel("s3://data/web_*.rox"), corpus)


@pytest.mark.usefixtures("bucket")
def test_large_files_are_uploaded_in_parts(corpus: Roxxel) -> None:
    with mock.patch.multiple("roxxel_store.client", _LARGE_BYTES=1, _PART_BYTES=10_000):
        corpus.copy_to("s3://data/web_*.rox")

    assert same(Roxxel("s3://data/web_*.rox"), corpus)


@pytest.mark.usefixtures("bucket")
def test_a_commit_of_another_copy_is_not_overwritten(
    corpus: Roxxel, tmp_path: Path
) -> None:
    other = Roxxel(tmp_path / "other_*.rox")
    other.write([[7] * 9], vocab_size=90)
    commit = Place.commit

    def after_another(place: Place, manifest: Manifest) -> bool:
        with mock.patch.object(Place, "commit", commit):
            other.copy_to("s3://data/web_*.rox")
        return commit(place, manifest)

    with (
        mock.patch.object(Place, "commit", after_another),
        pytest.raises(FileExistsError, match="another write was committed"),
    ):
        corpus.copy_to("s3://data/web_*.rox")

    assert Roxxel("s3://data/web_*.rox").tokens[:].tolist() == [7] * 9


def test_a_killed_copy_is_not_visible_and_continues(
    bucket: Bucket, corpus: Roxxel
) -> None:
    program = (
        "import sys; from roxxel_format import Roxxel\n"
        "Roxxel(sys.argv[1]).copy_to('s3://data/web_*.rox')\n"
    )
    # No copy can commit before it is killed.
    bucket.set_faults(latency_s=0.1, kinds=["503"], keys="manifest", methods=["PUT"])
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(corpus.filepath)]
        ) as child:
            wanted = len(list(bucket.folder.iterdir())) + 2
            wait_for(lambda wanted=wanted: len([*bucket.folder.iterdir()]) >= wanted)
            child.kill()
        with pytest.raises(FileNotFoundError):
            _ = Roxxel("s3://data/web_*.rox").num_tokens
    bucket.set_faults()
    wait_for(lambda: not bucket.stats()["open"])  # No request of a child is left.
    there = {path.name: path.stat().st_mtime_ns for path in bucket.folder.iterdir()}

    corpus.copy_to("s3://data/web_*.rox")

    assert same(Roxxel("s3://data/web_*.rox"), corpus)
    for name, changed in there.items():
        if not name.startswith("."):
            assert (bucket.folder / name).stat().st_mtime_ns == changed


@pytest.mark.usefixtures("bucket")
def test_the_command_copies(corpus: Roxxel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", str(corpus.filepath), "s3://data/web_*.rox"]) == 0
    assert capsys.readouterr().out.startswith(f"copied {corpus.num_tokens:,} tokens")
    assert main(["copy", str(corpus.filepath), "s3://data/web_*.rox"]) == 0
    assert capsys.readouterr().out.startswith("kept")
    assert main(["copy", "s3://data/web_*.rox", "s3://data/one.rox"]) == 1
    assert "use a pattern such as s3://data/one_*.rox" in capsys.readouterr().err


def test_a_repeated_copy_repairs_missing_and_short_files(
    bucket: Bucket, corpus: Roxxel, tmp_path: Path
) -> None:
    for target in ("s3://data/web_*.rox", str(tmp_path / "copy_*.rox")):
        corpus.copy_to(target)
        folder = bucket.folder if "://" in target else tmp_path
        shards = [path.rpartition("/")[2] for path in Roxxel(target).paths]
        (folder / shards[0]).unlink()
        data = (folder / shards[1]).read_bytes()
        (folder / shards[1]).write_bytes(data[:-1])

        assert not corpus.copy_to(target).kept

        assert same(Roxxel(target), corpus)


def test_a_replacing_copy_repairs_flipped_bits(bucket: Bucket, corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    name = Roxxel("s3://data/web_*.rox").paths[0].rpartition("/")[2]
    data = bytearray((bucket.folder / name).read_bytes())
    data[5000] ^= 1
    (bucket.folder / name).write_bytes(data)

    corpus.copy_to("s3://data/web_*.rox", exist="replace")

    assert same(Roxxel("s3://data/web_*.rox"), corpus)


def test_two_replacing_copies_share_no_files(
    bucket: Bucket, corpus: Roxxel, tmp_path: Path
) -> None:
    """A copy back begins before the first one has deleted the old files."""
    other = Roxxel(tmp_path / "other_*.rox")
    other.write([[7] * 9], vocab_size=90)
    corpus.copy_to("s3://data/web_*.rox")
    bucket.set_faults(latency_s=0.05)
    first = threading.Thread(
        target=lambda: other.copy_to("s3://data/web_*.rox", exist="replace")
    )
    first.start()
    wait_for(lambda: Roxxel("s3://data/web_*.rox").num_documents == 1)

    corpus.copy_to("s3://data/web_*.rox", exist="replace")

    first.join()
    assert same(Roxxel("s3://data/web_*.rox"), corpus)


@pytest.mark.usefixtures("bucket")
def test_a_plain_name_is_the_corpus_that_readers_find(corpus: Roxxel) -> None:
    corpus.copy_to("s3://data/web_*.rox", exist="replace")

    assert corpus.copy_to("s3://data/web").kept
    with pytest.raises(FileExistsError, match="the corpus exists already"):
        Roxxel("s3://data/web").write([[1]], exist="error", vocab_size=90)


def test_a_file_that_vanishes_before_the_commit_is_an_error(
    bucket: Bucket, corpus: Roxxel
) -> None:
    check = Place.check_present

    def after_a_clean(place: Place, sizes: dict[str, int]) -> None:
        next(bucket.folder.glob("*.rox")).unlink()
        check(place, sizes)

    with (
        mock.patch.object(Place, "check_present", after_a_clean),
        pytest.raises(FileNotFoundError, match="so nothing was committed"),
    ):
        corpus.copy_to("s3://data/web_*.rox")

    assert not (bucket.folder / "web_manifest.json").exists()


def test_a_link_to_nowhere_in_the_target_is_no_error(
    corpus: Roxxel, tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "link").symlink_to("nowhere")

    corpus.copy_to(tmp_path / "to" / "copy_*.rox")

    assert same(Roxxel(tmp_path / "to" / "copy_*.rox"), corpus)


@pytest.mark.parametrize("left", [0, 10, 300])
def test_a_truncated_manifest_is_replaced(
    bucket: Bucket, corpus: Roxxel, left: int
) -> None:
    corpus.copy_to("s3://data/web_*.rox")
    manifest = bucket.folder / "web_manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:left])

    corpus.copy_to("s3://data/web_*.rox", exist="replace")

    assert same(Roxxel("s3://data/web_*.rox"), corpus)
