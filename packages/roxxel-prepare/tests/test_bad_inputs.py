"""What `--skip-bad` leaves out: bytes that are not in their format, no more."""

from __future__ import annotations

import bz2
import errno
import io
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_format import Roxxel

from .helpers import main, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = b"".join(b'"document %d"\n' % number for number in range(3000))


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype=np.uint16).reshape(3, 2))
    return file.getvalue()


def documents(folder: Path, name: str, content: bytes, *options: str) -> list[bytes]:
    """Write an input of texts and return the documents of the corpus."""
    (folder / name).write_bytes(content)
    target = folder / "c_*.rox"
    assert main(["write", str(target), str(folder / name), *options]) == 0
    return [bytes(each) for each in Roxxel(target).documents]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Exception], None]:
    """Return a function that makes the second half of a file unreadable.

    The file is recorded first, and then opened again to read its documents.
    """
    opened: Any = Path.open
    is_recorded: set[Path] = set()

    def fail(path: Path, error: Exception) -> None:
        class Failing(io.RawIOBase):
            def __init__(self) -> None:
                self._file = opened(path, "rb", buffering=0)
                self._num_bytes = path.stat().st_size // 2

            def readable(self) -> bool:
                return True

            def seekable(self) -> bool:
                return True

            def seek(self, offset: int, whence: int = 0, /) -> int:
                return self._file.seek(offset, whence)

            def readinto(self, buffer: Any, /) -> int:
                left = self._num_bytes - self._file.tell()
                if left <= 0:
                    raise error
                return self._file.readinto(memoryview(buffer)[:left])

        def open_or_fail(self: Path, *arguments: Any, **options: Any) -> Any:
            if self == path and path in is_recorded:
                return io.BufferedReader(Failing(), 1 << 12)
            is_recorded.add(self)
            return opened(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", open_or_fail)

    return fail


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl.xz", lzma.compress(LINES, check=lzma.CHECK_NONE, preset=0)),
        ("a.npy", npy()),
    ],
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (MemoryError(), "memory"),
    ],
)
def test_what_is_not_the_fault_of_the_bytes_is_an_error_and_skips_nothing(
    name: str,
    content: bytes,
    error: Exception,
    said: str,
    tmp_path: Path,
    failing: Callable[[Path, Exception], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / name
    path.write_bytes(content)
    (tmp_path / "in" / f"0{name}").write_bytes(content)
    target = tmp_path / "out" / "c_*.rox"
    command = ["write", str(target), str(tmp_path / "in" / "*"), "--skip-bad"]
    failing(path, error)

    assert main(command) == 1

    message = capsys.readouterr().err.splitlines()[-1]
    assert str(path) in message
    assert said in message
    assert "copy" not in message
    assert [name for name in names_in(target.parent) if name.endswith(".json")] == []


@pytest.mark.parametrize(
    "line", [b'"\\ud800"', b'{"text": "a\\udc00"}', b'"\xed\xa0\x80"', b'"\xff"']
)
def test_a_line_that_is_no_unicode_is_bad(
    line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = b'"one"\n' + line + b'\n"two"\n'

    assert documents(tmp_path, "a.jsonl", rows, "--skip-bad") == [b"one", b"two"]

    assert "a.jsonl:2: " in capsys.readouterr().err
    assert main(["write", str(tmp_path / "d.rox"), str(tmp_path / "a.jsonl")]) == 1
    assert "a.jsonl:2: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ending", "compress"), [(".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_members_of_xz_and_bzip2_are_one_text(
    ending: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    first, second = compress(b'"one"\n"t'), compress(b'wo"\n')
    # After an xz stream, the format allows zeros.
    between = bytes(8 if ending == ".xz" else 0)

    found = documents(tmp_path, f"a.jsonl{ending}", first + between + second + between)

    assert found == [b"one", b"two"]


@pytest.mark.parametrize(
    ("ending", "compress"), [(".xz", lzma.compress), (".bz2", bz2.compress)]
)
@pytest.mark.parametrize("damage", ["cut", "flipped", "followed"])
def test_damaged_xz_and_bzip2_name_the_bytes(
    ending: str,
    compress: Callable[[bytes], bytes],
    damage: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = compress(LINES)
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    content = {"cut": whole[:-9], "flipped": flipped, "followed": whole + b"more"}
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(content[damage])

    assert main(["write", str(tmp_path / "c.rox"), str(path)]) == 1

    message = capsys.readouterr().err
    assert message.startswith(f"roxxel-prepare: {path}: ")
    assert "byte" in message
    assert "again" in message
