"""Decompress input files, and report damaged input files as `InputError`.

For a truncated or damaged file, the readers of `gzip` and `zstandard` raise exceptions
of several types, or none if the end of a Zstandard frame is missing. This module
decompresses member by member, so its errors name the file and the member. Concatenated
members are one text, as for the tools `gzip` and `zstd`. Zeros may follow a member of
gzip (as `tar` pads its tapes), and of xz. Any other byte after a member is an error,
where `gzip -d` would only warn and leave out the rest of the file.

Only bytes that break the format count as damage, because `--skip-bad` leaves out a
damaged file. A lack of memory, or an error of the disk or the bucket, is no damage.
"""

from __future__ import annotations

import bz2
import contextlib
import importlib
import io
import lzma
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from roxxel_store import missing_extra
from roxxel_store.errors import BucketError, reason_of
from roxxel_store.screen import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# Compressed bytes per read; 8 KiB of Zstandard decompress to 256 MiB at most.
_PIECE = 1 << 13
BUFFER = 1 << 20
_ZSTANDARD_WINDOW = 1 << 31
"""The largest window of Zstandard, which `zstd --long=31` uses. A decoder refuses
windows over 128 MiB unless it is told to accept them."""


class InputError(ValueError):
    """An input file is damaged or not in its format; the message names the file."""


class FormatError(InputError):
    """All rows of a file may be in another format, so none is skipped as damaged."""


@dataclass(frozen=True)
class Compression:
    """A compressed format: its names, the decoder of a member, and its error type.

    A decoder has `eof`, `unused_data` and `decompress`, as in the standard library.
    If it `is_padded`, zeros may follow a member.
    `magic` are its first bytes: some decoders wait for more bytes before they refuse
    wrong ones.
    """

    name: str
    member: str
    decoder: Callable[[], Any]
    error: type[Exception]
    is_padded: bool = False
    magic: bytes = b""


def library(name: str, extra: str, path: str) -> Any:
    """Import a package that an input file needs.

    Raises:
        ModuleNotFoundError: The package is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(f"{path}:", name, "roxxel-prepare", extra) from error


def reason(error: Exception) -> str:
    """Return a library's text about a file's bytes; it may contain some of them."""
    # The arguments of a SyntaxError are its text and a position in the code.
    if len(error.args) == 2 and isinstance(error.args[1], tuple):
        error = SyntaxError(error.args[0])
    return printable(reason_of(error))


@contextlib.contextmanager
def naming_damage(message: Callable[[str], str]) -> Generator[None]:
    """Convert a library's error about the bytes of a file to an InputError.

    Libraries raise errors of many types for damaged files. `message` gets the text of
    the error. A lack of memory, a missing package, and an error of the disk or of a
    bucket are no damage, and stay as they are.
    """
    try:
        yield
    except (InputError, BucketError, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(message(reason(error))) from error


def _zlib() -> Any:
    """Return the zlib of isal (extra `fast`), twice as fast, or else `zlib`."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ModuleNotFoundError:
        return zlib


def compression_of(path: str) -> Compression:
    """Return the compressed format that the name of a compressed file implies."""
    name = path.lower()
    if name.endswith(".gz"):
        # 16 added to the window size makes zlib require a gzip header.
        found = _zlib()
        return Compression(
            "gzip",
            "gzip member",
            lambda: found.decompressobj(16 + zlib.MAX_WBITS),
            found.error,
            is_padded=True,
            magic=b"\x1f\x8b",
        )
    if name.endswith(".zst"):
        zstandard = library("zstandard", "zstd", path)
        return Compression(
            "Zstandard",
            "Zstandard frame",
            lambda: zstandard.ZstdDecompressor(
                max_window_size=_ZSTANDARD_WINDOW
            ).decompressobj(),
            zstandard.ZstdError,
        )
    if name.endswith(".xz"):
        return Compression(
            "xz",
            "xz stream",
            lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
            lzma.LZMAError,
            is_padded=True,
            magic=b"\xfd7zXZ\0",
        )
    # The last of `formats.COMPRESSED`.
    return Compression("bzip2", "bzip2 stream", bz2.BZ2Decompressor, OSError)


def decompressed(path: str, file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return a file of the decompressed bytes of all members.

    Its reads raise InputError if the file is truncated or damaged.
    """
    pieces = _decompressed(path, file, compression)
    return io.BufferedReader(Pieces(pieces), BUFFER)


def _decompressed(
    path: str, file: BinaryIO, compression: Compression
) -> Iterator[bytes]:
    piece = file.read(_PIECE)
    if not piece:
        raise InputError(
            f"{path}: is empty, but a {compression.name} file is never empty; the file "
            "was probably truncated, so copy it again or make it again"
        )
    stop = len(piece)
    while piece:
        start = stop - len(piece)
        decoder = _decoder(f"{path}: bytes {start} to {stop}", compression, piece)
        while True:
            try:
                data = decoder.decompress(piece)
            except (compression.error, MemoryError) as error:
                what = f"{path}: bytes {start} to {stop}"
                raise _not_decoded(what, error, compression) from error
            if data:
                yield data
            if decoder.eof:
                break
            piece = file.read(_PIECE)
            stop += len(piece)
            if not piece:
                raise InputError(
                    f"{path}: ends at byte {stop}, inside the {compression.member} "
                    f"that begins at byte {start}; the file was probably truncated, so "
                    "copy it again or make it again"
                )
        piece = decoder.unused_data
        if not piece:
            piece = file.read(_PIECE)
            stop += len(piece)
        if compression.is_padded:
            piece, stop = _after_padding(file, piece, stop)


def _decoder(what: str, compression: Compression, piece: bytes) -> Any:
    """Return the decoder of a member that begins with `piece`, the bytes `what`.

    Raises InputError if no member begins so.
    """
    if not compression.magic.startswith(piece[: len(compression.magic)]):
        raise _not_complete(what, compression)
    return compression.decoder()


def _after_padding(file: BinaryIO, piece: bytes, stop: int) -> tuple[bytes, int]:
    """Return the bytes after the zeros that may follow a member, and where they end.

    `piece` is the bytes after the member, which end at byte `stop`.
    """
    while piece[:1] == b"\0":
        piece = piece.lstrip(b"\0")
        if not piece:
            piece = file.read(_PIECE)
            stop += len(piece)
    return piece, stop


def _not_decoded(what: str, error: Exception, compression: Compression) -> Exception:
    """Return the error for refused bytes; a lack of memory is not damage."""
    # `Error -3 while decompressing data: ` of zlib, and `Error -3 ` of isal.
    text = _NUMBERED.sub("", reason(error).rpartition(": ")[2])
    if isinstance(error, MemoryError) or text == _NO_MEMORY:
        return MemoryError(
            f"{what} need more memory to decompress than this process can get (a file "
            "of `zstd --long=31` needs 2 GiB); use fewer workers, or decompress the "
            "file first"
        )
    return _not_complete(what, compression, text)


def _not_complete(
    what: str, compression: Compression, why: str = "other first bytes"
) -> InputError:
    return InputError(
        f"{what} are not a complete {compression.member} ({why}); copy the file again "
        "or make it again"
    )


# A text of `zstandard`, which has one type of error.
_NO_MEMORY = "not enough memory"
_NUMBERED = re.compile(r"^Error -?\d+ ")


class Pieces(io.RawIOBase):
    """A file whose content is the concatenated pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def as_seekable(file: BinaryIO) -> BinaryIO:
    """Return a seekable file; read a pipe into memory."""
    return file if file.seekable() else cast("BinaryIO", io.BytesIO(file.read()))
