"""Drafts: hidden files of one writer each; and disks without room."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel, ShardWriter
from roxxel_format.cli import main

from .helpers import corpus_of, documents_of, names_in, shard_at

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def room(num_bytes: int) -> Generator[None]:
    """Let no file of this process grow beyond a size."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def export(source: Path, output: Path, *options: str) -> int:
    return main(["copy", str(source), str(output), *options])


def source_of(folder: Path, *numbers: int) -> list[Path]:
    """Write a corpus of one file for each number, and return their paths."""
    paths = [folder / f"{number}.rox" for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        Roxxel(path).write([np.full(5000, number, np.uint16)])
    return paths


@pytest.mark.parametrize("name", ["out.npy.partial", ".out.npy.partial", "out.npy~"])
@pytest.mark.parametrize("fails", [False, True])
def test_export_leaves_other_files_alone(
    name: str, tmp_path: Path, *, fails: bool
) -> None:
    (source,) = source_of(tmp_path, 1)
    mine = tmp_path / name
    mine.write_text("mine", encoding="utf-8")

    with room(6000) if fails else contextlib.nullcontext():
        assert export(source, tmp_path / "out.npy") == int(fails)

    assert mine.read_text(encoding="utf-8") == "mine"
    names = {"1.rox", name} if fails else {"1.rox", name, "out.npy"}
    assert set(names_in(tmp_path)) == names


def test_exports_of_one_output_at_once_are_each_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = source_of(tmp_path, 1, 2)
    output = tmp_path / "out.npy"
    seen: list[int] = []

    def sync(_: int) -> None:
        """Export the other corpus before the draft of the first has its name."""
        if not seen:
            seen.append(0)
            assert export(second, output, "--exist=replace") == 0
            seen.append(int(np.load(output).sum()))

    monkeypatch.setattr("os.fsync", sync)
    assert export(first, output, "--exist=replace") == 0

    assert seen == [0, 2 * 5000]
    assert np.load(output).sum() == 5000
    assert names_in(tmp_path) == ["1.rox", "2.rox", "out.npy"]


def test_export_keeps_a_file_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = source_of(tmp_path, 1)
    output = tmp_path / "out.npy"

    def appear(_: int) -> None:
        output.write_bytes(b"mine")

    monkeypatch.setattr("os.fsync", appear)

    assert export(source, output) == 1

    assert f"{output}: exists already; add --exist rep" in capsys.readouterr().err
    assert output.read_bytes() == b"mine"
    assert names_in(tmp_path) == ["1.rox", "out.npy"]


def test_writers_of_one_shard_at_once_do_not_share_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    with ShardWriter(path, "uint16") as first, ShardWriter(path, "uint16") as second:
        first.append(np.arange(9, dtype=np.uint16))
        second.append(np.arange(4, dtype=np.uint16))

        second.close()
        assert shard_at(path).tokens[:].tolist() == [0, 1, 2, 3]

    assert shard_at(path).tokens[:].tolist() == list(range(9))
    assert names_in(tmp_path) == ["a.rox"]


def test_draft_of_a_killed_shard_writer_is_a_leftover(tmp_path: Path) -> None:
    path = tmp_path / "a.rox"
    with ShardWriter(path, "uint16"):
        (draft,) = names_in(tmp_path)
        data = (tmp_path / draft).read_bytes()
    path.unlink()
    (tmp_path / draft).write_bytes(data)

    corpus = Roxxel(path)

    assert corpus.leftovers() == [str(tmp_path / draft)]
    assert corpus.remove_leftovers() == [str(tmp_path / draft)]
    assert names_in(tmp_path) == []


REMEDY = "; the new file was discarded, so make room and write again"


def test_full_disk_is_named_by_an_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = source_of(tmp_path, 1)

    with room(6000):
        assert export(source, tmp_path / "out.npy") == 1

    message = capsys.readouterr().err
    assert message == f"roxxel-format: {tmp_path}/out.npy: File too large{REMEDY}\n"
    assert names_in(tmp_path) == ["1.rox"]


@pytest.mark.parametrize("per", ["token", "document"])
def test_full_disk_is_named_by_a_column(per: Any, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, documents_of(*[2] * 3000))
    before = names_in(tmp_path)
    count = corpus.num_tokens if per == "token" else corpus.num_documents

    with room(1000), pytest.raises(OSError, match="File too large") as found:
        corpus.write_column("mark", np.arange(count), per)

    assert str(found.value).startswith(f"[Errno 27] File too large{REMEDY}: ")
    assert Path(corpus.paths[0]).stem + ".mark." in str(found.value)
    assert names_in(tmp_path) == before


def test_full_disk_is_named_by_the_manifest_of_an_append(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"block_size": 512, "exist": "append"}
    corpus = Roxxel(tmp_path / "c_*.rox")
    for _ in range(32):
        corpus.write([[1]], **arguments)
    before = names_in(tmp_path)
    size = (tmp_path / "c_manifest.json").stat().st_size
    assert size > Path(corpus.paths[0]).stat().st_size + 100

    with room(size), pytest.raises(OSError, match=r"make room.*c_manifest\.json"):
        corpus.write([[1]], **arguments)

    assert names_in(tmp_path) == before
    assert corpus.num_tokens == 32


def test_folder_that_is_missing_names_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = source_of(tmp_path, 1)
    output = tmp_path / "missing" / "out.npy"

    assert export(source, output) == 1

    said = capsys.readouterr().err
    assert said.startswith(f"roxxel-format: {output}: its folder does not exist; ")
