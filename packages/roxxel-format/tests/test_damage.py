from __future__ import annotations

import errno
import os
import pickle
import struct
import subprocess
import sys
import zlib
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_format import ChecksumError, Roxxel, ShardError

from .helpers import corpus_of, documents_of, line_of, shard_at

if TYPE_CHECKING:
    from roxxel_format._spec.layout import Layout

DOCUMENTS = documents_of(900, 0, 333)
LINE = line_of(DOCUMENTS, [5])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.rox"
    Roxxel(path).write(DOCUMENTS, separator=5, block_size=512)
    return path.read_bytes()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broken") / "a.rox"


def read_everything(path: Path) -> None:
    """Read a shard in every way; it is right, or raises ShardError."""
    corpus = Roxxel(path, check="blocks")
    try:
        assert np.array_equal(corpus.tokens[:], LINE)
        assert np.array_equal(corpus.read([3], 1000)[0], LINE[3:1003])
        for found, given_ in zip(corpus.documents, DOCUMENTS, strict=True):
            assert np.array_equal(found, given_)
        corpus.document_spans(0, corpus.num_tokens)
        assert corpus.metadata["separator"] == [5]
        assert corpus.tokenizer is None
    except ShardError:
        return
    assert corpus.verify().ok


@given(data=st.data())
def test_a_flipped_bit_is_found_or_harmless(
    data: st.DataObject, whole: bytes, broken: Path
) -> None:
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    broken.write_bytes(changed)

    read_everything(broken)

    with pytest.raises(ShardError, match=r"a\.rox: "):
        Roxxel(broken).verify().raise_if_damaged()


def test_shards_with_the_same_damaged_head_are_each_named(
    whole: bytes, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        path = tmp_path / f"{name}.rox"
        path.write_bytes(whole)
        assert Roxxel(path).num_tokens == LINE.size
        path.write_bytes(whole[:40] + b"!" + whole[41:])
        for _ in range(2):
            with pytest.raises(ShardError, match=rf"{name}\.rox: the head \(bytes 0"):
                _ = Roxxel(path).num_tokens


@given(data=st.data())
def test_a_truncated_shard_names_the_file(
    data: st.DataObject, whole: bytes, broken: Path
) -> None:
    broken.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])

    with pytest.raises(ShardError, match=r"a\.rox: "):
        _ = Roxxel(broken).num_tokens


def test_damage_of_the_foot_or_lost_bytes_are_found_when_a_shard_is_opened(
    whole: bytes, broken: Path
) -> None:
    foot = len(whole) - 256
    changed = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for at in range(foot, len(whole))
    ]
    for data in (
        *changed,
        whole[: foot - 1] + whole[foot:],
        whole[:foot] + whole[-257:],
    ):
        broken.write_bytes(data)

        with pytest.raises(ShardError, match=r"a\.rox: the (end of the file|foot)"):
            _ = Roxxel(broken).num_tokens


def test_damaged_tokens_name_block_and_offset(whole: bytes, broken: Path) -> None:
    changed = bytearray(whole)
    changed[4096 + 512 * 3 + 300] ^= 1
    broken.write_bytes(changed)
    message = (
        "a.rox: block 3 of the tokens .byte 5632 on. does not match its checksum; the "
        "bytes are damaged"
    )

    with pytest.raises(ChecksumError, match=message) as caught:
        _ = Roxxel(broken, check="blocks").tokens[:]
    assert (caught.value.section, caught.value.block) == ("tokens", 3)
    assert caught.value.byte_offset == 5632
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    report = Roxxel(broken).verify()
    assert not report.ok
    assert [str(error) for error in report.errors] == [str(caught.value)]
    sound = Roxxel(broken, check="blocks").tokens[: 256 * 3]
    assert np.array_equal(sound, LINE[: 256 * 3])


def test_the_tokens_of_a_damaged_block_are_known(tmp_path: Path) -> None:
    """All other tokens of the corpus can be read."""
    documents = documents_of(*[700] * 30)
    corpus = Roxxel(tmp_path / "web_*.rox", check="blocks")
    corpus.write(documents, separator=5, block_size=512, max_shard_bytes=20_000)
    second = Path(corpus.paths[1])
    data = bytearray(second.read_bytes())
    data[4096 + 2 * 512] ^= 1
    second.write_bytes(data)
    corpus.close()

    with pytest.raises(ChecksumError) as caught:
        _ = corpus.tokens[:]

    damaged = corpus.damaged_tokens(caught.value)
    assert damaged is not None
    first = shard_at(corpus.paths[0]).layout.num_tokens
    assert damaged == (first + 512, first + 768)
    line = line_of(documents, [5])
    assert np.array_equal(corpus.tokens[: damaged[0]], line[: damaged[0]])
    assert np.array_equal(corpus.tokens[damaged[1] :], line[damaged[1] :])
    corpus_of(tmp_path / "other", documents)
    assert Roxxel(tmp_path / "other").damaged_tokens(caught.value) is None


def test_the_last_block_ends_with_the_tokens_of_its_shard(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path / "a.rox", check="blocks")
    corpus.write(documents_of(300), separator=5, block_size=512)
    damage = partial(
        ChecksumError, "damaged", "fetch", path=corpus.paths[0], block=1, byte_offset=0
    )

    last, index = damage(section="tokens"), damage(section="documents")

    assert corpus.damaged_tokens(last) == (256, 301)
    assert corpus.damaged_tokens(index) is None


def test_damage_behind_a_version_that_was_compacted_damages_none_of_its_tokens(
    tmp_path: Path,
) -> None:
    first = corpus_of(tmp_path, documents_of(10), exist="append").fingerprint
    corpus = corpus_of(tmp_path, documents_of(9000), exist="append")
    corpus.compact()
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096 + 2 * 4096] ^= 1
    path.write_bytes(data)

    [error] = corpus.verify().errors

    assert isinstance(error, ChecksumError)
    assert corpus.damaged_tokens(error) == (4096, 4352)
    assert corpus.with_version(first).damaged_tokens(error) is None


def test_other_files_are_no_shards(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    cases = {
        b"": "not a Roxxel shard",
        b"hello": "not a Roxxel shard, it begins with b'hello'",
        b"\x89ROX\r\n\x1a\n": "file has 8 bytes, fewer than the smallest shard",
        b"\x89ROX\n\x1a\n" * 1000: "not a Roxxel shard",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(ShardError, match=message):
            shard_at(path)


def test_another_check_changes_nothing_else(tmp_path: Path) -> None:
    corpus = Roxxel(corpus_of(tmp_path, documents_of(2000)).filepath)

    other = corpus.with_check("blocks")

    assert np.array_equal(other.tokens[:], corpus.tokens[:])
    with pytest.raises(ValueError, match="'all'"):
        corpus.with_check("all")  # pyright: ignore[reportArgumentType] - the point
    assert other.fingerprint == corpus.fingerprint


@pytest.mark.parametrize("offset", [0, 8, 4092, -256, -200, -100, -1])
def test_a_head_or_foot_that_is_damaged_after_opening_is_found(
    tmp_path: Path, offset: int
) -> None:
    corpus = corpus_of(tmp_path, documents_of(2000, 2000))
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)

    assert not corpus.verify().ok
    with pytest.raises(ShardError):
        corpus.read([0], 5)


def test_a_file_of_the_same_size_in_place_of_the_opened_one_is_an_error(
    tmp_path: Path,
) -> None:
    corpus = corpus_of(tmp_path / "a", documents_of(2000, 2000))
    path = Path(corpus.paths[0])
    assert corpus.num_tokens == 4000
    first, second = documents_of(2000, 2000)
    other = corpus_of(tmp_path / "b", [first[::-1].copy(), second])
    assert Path(other.paths[0]).stat().st_size == path.stat().st_size
    Path(other.paths[0]).replace(path)

    with pytest.raises(ShardError, match="the corpus was replaced"):
        corpus.read([0], 5)
    path.unlink()
    path.mkdir()
    with pytest.raises(ShardError, match="is a folder, not a regular file"):
        corpus.read([0], 5)


def test_a_shard_for_which_there_is_no_address_space_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path, documents_of(2000))

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr("mmap.mmap", refused)
        assert corpus.num_tokens == 2000
        with pytest.raises(OSError, match="Cannot allocate memory"):
            corpus.read([0], 5)
    assert corpus.read([0], 2000)[0].tolist() == documents_of(2000)[0].tolist()


def test_a_pipe_is_not_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    os.mkfifo(path)

    with pytest.raises(ShardError, match="is a pipe or a device, not a regular file"):
        _ = Roxxel(path).num_tokens


def test_a_file_that_is_replaced_or_cut_after_opening_is_an_error(
    tmp_path: Path,
) -> None:
    corpus = corpus_of(tmp_path, documents_of(2000, 2000))
    path = corpus.paths[0]
    checked = Roxxel(corpus.filepath, check="blocks")
    _ = checked.tokens[0], corpus.num_tokens
    other = tmp_path / "other.rox"
    Roxxel(other).write([[1]])
    other.replace(path)

    with pytest.raises(ShardError, match="the corpus was replaced"):
        corpus.read([0], 10)
    os.truncate(corpus.paths[1], 9000)
    with pytest.raises(ShardError, match="the file was truncated"):
        corpus.read([2000], 10)


def test_checked_reads_find_a_file_that_shrinks_while_it_is_open(
    tmp_path: Path,
) -> None:
    corpus = corpus_of(tmp_path, documents_of(2000))
    checked = Roxxel(corpus.filepath, check="blocks")
    _ = checked.tokens[0]
    os.truncate(checked.paths[0], 5000)

    with pytest.raises(ShardError, match="was changed after it was opened"):
        _ = checked.tokens[500]


def test_damage_after_the_check_of_a_document_index_changes_no_document(
    tmp_path: Path,
) -> None:
    documents = documents_of(*[40] * 500)
    path = tmp_path / "a.rox"
    Roxxel(path).write(documents, separator=5, block_size=512)
    corpus = Roxxel(path, check="blocks")
    assert np.array_equal(corpus.documents[499], documents[499])
    at = shard_at(path).layout.sections.documents

    with path.open("r+b") as file:
        file.seek(at + 8 * 100)
        file.write((83).to_bytes(8, "little"))

    assert np.array_equal(corpus.documents[100], documents[100])
    spans = corpus.document_spans(41 * 100, 41 * 101)
    assert spans.tolist() == [[100, 41 * 100, 41 * 101]]
    with pytest.raises(ChecksumError, match="of the documents"):
        _ = Roxxel(path).documents[100]


CUT_SHORT = """
import os, sys, time
from roxxel_format import Roxxel, ShardError
corpus = Roxxel(sys.argv[1], check=sys.argv[2])
tokens = corpus.num_tokens
corpus.read([0], tokens), corpus.documents[0], corpus.document_spans(0, tokens)
for path in corpus.paths:
    os.truncate(path, 4096)
accesses = {
    "documents": lambda: corpus.documents[0],
    "spans": lambda: corpus.document_spans(0, tokens),
    "will_need": lambda: corpus.will_need([0], tokens),
    "tokens": lambda: corpus.tokens[:],
    "read": lambda: corpus.read([0], tokens),
    "metadata": lambda: corpus.metadata,
}
# The check of a size holds for 10 ms; this clock says that they have passed.
clock = time.monotonic
time.monotonic = lambda: clock() + 1
for name, access in accesses.items():
    try:
        access()
    except ShardError as error:
        assert "was changed after it was opened" in str(error), error
    else:
        sys.exit(name + " gave no error")
"""


@pytest.mark.parametrize("check", ["headers", "blocks"])
@pytest.mark.parametrize("many", [False, True])
def test_a_shard_cut_short_while_it_is_mapped_does_not_end_the_process(
    check: str, many: bool, tmp_path: Path
) -> None:
    room = 12_000 if many else 100_000
    corpus = corpus_of(tmp_path, documents_of(4500, 4500), max_shard_bytes=room)
    assert (corpus.num_shards > 1) == many

    command = [sys.executable, "-c", CUT_SHORT, str(tmp_path), check]
    child = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (child.returncode, child.stderr) == (0, "")


def test_verify_reports_progress_and_all_damage(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[900] * 9))
    for path in corpus.paths[:2]:
        with Path(path).open("r+b") as file:
            file.seek(4096 + 512)
            file.write(b"damage")
    seen: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    report = corpus.verify(progress=note)

    assert ["block 1 of the tokens" in str(each) for each in report.errors] == [
        True
    ] * 2
    assert seen[-1] == (report.num_bytes, report.num_bytes)
    assert report.num_shards == corpus.num_shards


def test_verify_names_every_shard_that_cannot_be_opened(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[900] * 9))
    for path in corpus.paths[1::2]:
        Path(path).write_bytes(b"")

    errors = map(str, corpus.verify().errors)

    for path, error in zip(corpus.paths[1::2], errors, strict=True):
        assert error.startswith(path)


def sealed(data: bytearray, layout: Layout) -> bytes:
    """Return the bytes of a shard with the checksums and digests of its content."""
    at, size = layout.sections, layout.head.block_size
    blocks = [
        zlib.crc32(data[start : min(start + size, at.checksums)])
        for start in range(at.tokens, at.checksums, size)
    ]
    struct.pack_into(f"<{len(blocks)}I", data, at.checksums, *blocks)
    foot = data[-256:]
    struct.pack_into("<I", foot, 120, zlib.crc32(data[at.checksums : at.metadata]))
    sections = data[at.documents : at.metadata]
    content = blake2b(data[16:44] + foot[8:44] + sections, digest_size=32).digest()
    covered = data[:4096] + data[at.documents : at.foot] + foot[:128] + content
    foot[128:192] = content + blake2b(covered, digest_size=32).digest()
    struct.pack_into("<I", foot, 244, zlib.crc32(foot[:244]))
    return bytes(data[:-256] + foot)


@pytest.mark.parametrize("ends", [(4, 4, 12), (8, 4, 12), (2**63 - 1, 2**64 - 2, 12)])
def test_ends_that_no_documents_can_have_are_damage(
    tmp_path: Path, ends: tuple[int, ...]
) -> None:
    path = tmp_path / "a.rox"
    Roxxel(path).write(documents_of(3, 3, 3), separator=5)
    layout = shard_at(path).layout
    data = bytearray(path.read_bytes())
    struct.pack_into("<3Q", data, layout.sections.documents, *ends)
    path.write_bytes(sealed(data, layout))

    with pytest.raises(ShardError, match="the ends of its documents are out of order"):
        Roxxel(path).document_spans(0, 12)


def test_verify_finds_a_token_beyond_the_range_in_the_foot(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    Roxxel(path).write([np.array([5, 6, 7], np.uint16)])
    layout = shard_at(path).layout
    for token in (4, 8):
        data = bytearray(path.read_bytes())
        data[layout.sections.tokens] = token
        path.write_bytes(sealed(data, layout))

        (error,) = Roxxel(path).verify().errors

        assert str(error).startswith(f"{path}: its head and sections do not match")


def test_verify_finds_padding_that_is_not_zero_though_its_checksum_holds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.rox"
    Roxxel(path).write(documents_of(1000), block_size=512)
    layout = shard_at(path).layout
    at = layout.sections
    data = bytearray(path.read_bytes())
    data[at.documents - 48] = 1
    path.write_bytes(sealed(data, layout))
    corpus = Roxxel(path, check="blocks")
    assert corpus.read([0], 1000)[0].tolist() == documents_of(1000)[0].tolist()

    (error,) = corpus.verify().errors

    assert str(error) == (
        f"{path}: the padding, the last 48 bytes of its token blocks, is not zero; "
        "fetch or write this shard again"
    )
