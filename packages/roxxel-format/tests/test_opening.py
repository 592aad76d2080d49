"""Only regular files are opened, and a manifest only up to a bound."""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING

import forked
import numpy as np
import pytest
from roxxel_format import Roxxel, ShardError
from roxxel_format.errors import ManifestError

from .helpers import corpus_of, documents_of, names_in, short
from .test_foreign import write_megatron

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = documents_of(900, 900)

FILES = {
    "c_manifest.json": [
        "Roxxel('c_*.rox').num_tokens",
        "Roxxel('c_*.rox').write([[1]], exist='append')",
        "Roxxel('c.rox').num_tokens",
    ],
    "c_*_000.rox": ["Roxxel('c_*.rox').tokens[0]"],
    "a.npy": ["FlatTokens('a.npy')"],
    "a.bin": ["FlatTokens('a.bin', 'uint16')"],
    "m.idx": ["MegatronTokens('m')"],
    "m.bin": ["MegatronTokens('m')"],
    "c_*_000.mask.*.bin": ["Roxxel('c_*.rox').column('mask')[0]"],
}
"""Code that opens a file, by the name of the file."""

KINDS = [("c_manifest.json", "device"), ("c_*_000.rox", "device"), ("a.npy", "folder")]

# In a child, because an open that waits for a writer would wait for ever. A device
# without an end fills the memory that the child may have, and no more.
CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from roxxel_format import Roxxel
from roxxel_format.foreign import FlatTokens, MegatronTokens
for code in sys.argv[1:]:
    try:
        exec(code)
    except (ValueError, IsADirectoryError) as error:
        print(type(error).__name__, error)
    else:
        print(code, "raised nothing")
"""


def become(kind: str, path: Path) -> None:
    """Replace a file by something that is not a regular file."""
    path.unlink()
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize(
    ("file", "kind"),
    [*((file, "named pipe") for file in FILES), *KINDS],
)
def test_a_file_that_is_not_regular_is_refused_at_once(
    file: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = corpus_of(tmp_path, DOCUMENTS)
    corpus.write_column("mask", np.zeros(1800, np.uint8))
    np.save("a.npy", DOCUMENTS[0])
    DOCUMENTS[0].tofile("a.bin")
    write_megatron(tmp_path / "m", DOCUMENTS)
    (path,) = tmp_path.glob(file)
    become(kind, path)

    child = forked.run(
        [sys.executable, "-c", CHILD, *FILES[file]],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    said = child.stdout.splitlines()
    assert len(said) == len(FILES[file])
    for line in said:
        if kind == "folder" and file in {"a.npy", "a.bin"}:
            assert line.startswith("IsADirectoryError ")
            assert "name its files with a pattern" in line
            continue
        assert line.startswith("ShardError ")
        found = "a folder" if kind == "folder" else "a pipe or a device"
        assert line.endswith(
            f"{path.name}: is {found}, not a regular file; check the path"
        )


def test_a_folder_in_place_of_a_manifest_stays_when_a_corpus_is_replaced(
    tmp_path: Path,
) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    become("folder", tmp_path / "c_manifest.json")
    before = names_in(tmp_path)

    with pytest.raises(ShardError, match="is a folder, not a regular file"):
        corpus.write([[1]], exist="replace")

    assert names_in(tmp_path) == before


def test_a_manifest_above_the_bound_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c_manifest.json"
    path.touch()
    os.truncate(path, 2**28 + 1)

    with pytest.raises(ShardError) as caught:
        Roxxel(tmp_path / "c_*.rox").num_tokens  # noqa: B018 - opens the corpus

    assert str(caught.value) == (
        f"{path}: has 268435457 bytes, more than the limit of 268435456; check the path"
    )


def test_a_manifest_of_many_lists_is_refused_before_it_is_parsed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c_manifest.json"
    body = b'{"format":"roxxel manifest","version":1,"x":[' + b"[]," * 2**21 + b"[]]"
    path.write_bytes(body + b',"crc32":"%08x"}\n' % zlib.crc32(body))

    with pytest.raises(ManifestError, match=r"2097155 lists and objects in 6291\d+ by"):
        Roxxel(tmp_path / "c_*.rox").num_tokens  # noqa: B018 - opens the corpus


def test_no_manifest_is_committed_that_readers_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    before = names_in(tmp_path)
    size = (tmp_path / "c_manifest.json").stat().st_size
    monkeypatch.setattr("roxxel_format._write.place.MAX_MANIFEST_SIZE", size)

    with pytest.raises(ValueError, match=r"c_manifest\.json: .*readers accept \d+"):
        corpus.write(DOCUMENTS, exist="append")

    assert names_in(tmp_path) == before
    assert Roxxel(tmp_path / "c_*.rox").num_tokens == 1800


@pytest.mark.parametrize("name", ["**.rox", "a**/b.rox", "?_*.rox", "*/c_*.rox"])
def test_a_pattern_that_may_mean_several_corpora_is_an_error_that_names_it(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ShardError, match="one \\*, in its last part") as caught:
        Roxxel(tmp_path / name).num_tokens  # noqa: B018 - opens the corpus

    assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_a_path_means_what_it_meant_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    corpora = [Roxxel("a_*.rox"), Roxxel("~/b_*.rox"), Roxxel("~nobody_*.rox")]
    monkeypatch.chdir("elsewhere")

    for corpus in corpora:
        corpus.write([[1, 2]], vocab_size=9)

    names = short(path.name for path in tmp_path.glob("*.rox"))
    assert names == ["a_000.rox", "b_000.rox", "~nobody_000.rox"]


def test_a_shard_of_another_name_is_read_and_not_written(tmp_path: Path) -> None:
    Roxxel(tmp_path / "one.rox").write([[1, 2, 3]])
    other = (tmp_path / "one.rox").rename(tmp_path / "renamed.bin")

    assert Roxxel(other).tokens[:].tolist() == [1, 2, 3]
    with pytest.raises(NotADirectoryError, match=r"renamed\.bin: is no folder"):
        Roxxel(other).write([[4]], exist="replace")

    assert Roxxel(other).tokens[:].tolist() == [1, 2, 3]
