"""Decompress input files, and report damaged input files as `InputError`.

For a truncated or damaged file, the readers of `gzip` and `zstandard` raise exceptions
of several types, or none if the end of a Zstandard frame is missing. This module
decompresses member by member, so its errors name the file and the member. Concatenated
members are one text, as for the tools `gzip` and `zstd`. Any byte after the last member
is an error, even a zero, which a crash of the machine can leave.
"""

from __future__ import annotations

import importlib
import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from roxxel_format.naming import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Compressed bytes per read; 8 KiB of Zstandard decompress to 256 MiB at most.
_PIECE = 1 << 13
_BUFFER = 1 << 20


class InputError(ValueError):
    """An input file is damaged or not in its format; the message names the file."""


class _Decoder(Protocol):
    """Decompresses one member."""

    @property
    def eof(self) -> bool:
        """Whether the member is complete."""
        ...

    @property
    def unused_data(self) -> bytes:
        """Bytes after the member."""
        ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class Compression:
    """A compressed format: its names, the decoder of a member, and its error type."""

    name: str
    member: str
    decoder: Callable[[], _Decoder]
    error: type[Exception]


def library(name: str, extra: str, path: str) -> Any:
    """Import a package that an input file needs.

    Raises:
        ModuleNotFoundError: The package is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{path}: needs {name}: pip install "roxxel-format[{extra}]"', name=name
        ) from error


def reason(error: Exception) -> str:
    """Return the text of a library's error, without a final period."""
    # The arguments of a SyntaxError are its text and a position in the code.
    has_position = len(error.args) == 2 and isinstance(error.args[1], tuple)
    message = str(error.args[0] if has_position else error)
    text = " ".join(message.split()).rstrip(".")
    # The text may contain bytes of the file.
    return printable(text) or type(error).__name__


def compression_of(path: str) -> Compression | None:
    """Return the compressed format that a name implies; None if the file is plain."""
    if path.endswith(".gz"):
        # 16 added to the window size makes zlib require a gzip header.
        return Compression(
            "gzip",
            "gzip member",
            lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
            zlib.error,
        )
    if path.endswith(".zst"):
        zstandard = library("zstandard", "zstd", path)
        return Compression(
            "Zstandard",
            "Zstandard frame",
            lambda: zstandard.ZstdDecompressor().decompressobj(),
            zstandard.ZstdError,
        )
    return None


def decompressed(path: str, file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return a file of the decompressed bytes of all members.

    Its reads raise InputError if the file is truncated or damaged.
    """
    pieces = _decompressed(path, file, compression)
    return io.BufferedReader(_Pieces(pieces), _BUFFER)


def _decompressed(
    path: str, file: BinaryIO, compression: Compression
) -> Iterator[bytes]:
    """Yield the decompressed bytes of all members, in pieces."""
    piece = file.read(_PIECE)
    if not piece:
        raise InputError(
            f"{path}: is empty, but a {compression.name} file is never empty; the file "
            "was probably truncated, so copy it again or make it again"
        )
    stop = len(piece)
    while piece:
        start = stop - len(piece)
        decoder = compression.decoder()
        while True:
            try:
                data = decoder.decompress(piece)
            except compression.error as error:
                raise InputError(
                    f"{path}: bytes {start} to {stop} are not a complete "
                    f"{compression.member} ({reason(error).rpartition(': ')[2]}); copy "
                    "the file again or make it again"
                ) from error
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


class _Pieces(io.RawIOBase):
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
