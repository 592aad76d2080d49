"""Replace the damaged blocks of a shard on a disk by blocks from a copy of the shard.

The checksums that the shard records decide which blocks are damaged, and whether a
block of the copy is right. So the copy may itself be damaged elsewhere. The foot holds
checksums of the metadata and of the checksums section, so both are repaired too.

The repair writes a whole new file, verifies its digest, and renames it to the shard. A
block that is written in place could be half written when a process is killed, and a
process that maps the shard could read such a block.
"""

from __future__ import annotations

import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from roxxel_store import roxxel_command
from roxxel_store.output import Output
from roxxel_store.urls import DEFAULT_TIMEOUT_S, check_on_disk

from roxxel_format._read.blocks import damage_of_shard
from roxxel_format._read.opening import open_shard_file
from roxxel_format._read.shard import LOCAL, open_shard
from roxxel_format._spec.layout import FOOT_SIZE, HEAD_SIZE, parse_layout
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roxxel_format._read.files import OpenFile
    from roxxel_format._spec.layout import Layout

_RUN_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair: the names of the blocks and sections it replaced."""

    replaced: tuple[str, ...]
    num_bytes: int


class _Block(NamedTuple):
    """The bytes `[start, stop)` of a shard that one checksum covers."""

    section: str
    number: int | None
    start: int
    stop: int
    checksum: int

    @property
    def name(self) -> str:
        if self.number is None:
            return f"the {self.section} (byte {self.start} on)"
        return f"block {self.number} of the {self.section} (byte {self.start} on)"


def repair_shard(
    filepath: str, copy: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Repair:
    """Replace the damaged blocks of a shard; change nothing if no block is damaged.

    `filepath` is a file on a disk, and `copy` a path or a URL.

    Raises:
        ChecksumError: A block that the shard needs is damaged in the copy too, or the
            copy is not a copy of this shard.
        ShardError: The head or the foot of the shard is damaged, the sizes of shard and
            copy differ, or the repaired shard does not match its digest.
        OSError: A file cannot be read or written.
    """
    check_on_disk(
        filepath,
        "a repair writes to a local disk, and this is a URL; copy the corpus with "
        f"`{roxxel_command('format copy')}`",
        ShardError,
    )
    path = Path(filepath).resolve()  # A rename would replace a link.
    file = LOCAL.open(str(path))
    layout = _layout_of(file)
    source = _SourceOfBlocks(copy, file, timeout_s)
    damaged = [
        block
        for run in _runs(layout, _checksums(file, layout, source))
        for block in _damaged(run, file.read(run[0].start, run[-1].stop))
    ]
    if not damaged:
        return Repair((), layout.sections.stop)
    with Output(path) as output:
        _write_repaired(output, file, source, damaged)
        output.finish()
        shutil.copymode(path, output.draft)
        errors = damage_of_shard(open_shard(str(output.draft)), map)
        if errors:
            raise ShardError(
                f"{path}: the repaired shard does not match its digest, so the shard "
                "was not changed; fetch or write this shard again"
            ) from errors[0]
        output.publish()
    return Repair(tuple(block.name for block in damaged), layout.sections.stop)


def _layout_of(file: OpenFile) -> Layout:
    """Return the layout; the sections, which may be damaged, are not read."""
    size = file.num_bytes
    head = file.read(0, min(size, HEAD_SIZE))
    return parse_layout(
        head, file.read(max(0, size - FOOT_SIZE), size), size, file.path
    )


class _SourceOfBlocks:
    """A copy of a shard, opened at its first use."""

    def __init__(self, copy: str, shard: OpenFile, timeout_s: float) -> None:
        self._path = copy
        self._shard = shard
        self._timeout_s = timeout_s
        self._file: OpenFile | None = None

    def read(self, damaged: Sequence[_Block]) -> bytes:
        """Return the bytes from the first block to the last; check each block."""
        if self._file is None:
            self._file = self._open()
        start = damaged[0].start
        data = self._file.read(start, damaged[-1].stop)
        for block in damaged:
            if not _is_right(block, data, start):
                raise ChecksumError(
                    f"{self._path}: {block.name} does not match the checksum that "
                    f"{self._shard.path} records, so nothing was changed",
                    "give another copy of the same shard",
                    path=self._path,
                    section=block.section,
                    block=block.number,
                    byte_offset=block.start,
                )
        return data

    def _open(self) -> OpenFile:
        file = open_shard_file(self._path, self._timeout_s)
        if file.num_bytes != self._shard.num_bytes:
            raise ShardError(
                f"{self._path}: has {file.num_bytes} bytes, but {self._shard.path} has "
                f"{self._shard.num_bytes}, so nothing was changed; give a copy of the "
                "same shard"
            )
        return file


def _checksums(file: OpenFile, layout: Layout, source: _SourceOfBlocks) -> bytes:
    """Return the section of checksums, from the copy if the shard's is damaged."""
    section = _sections(layout)[0]
    data = file.read(section.start, section.stop)
    return source.read([section]) if _damaged([section], data) else data


def _sections(layout: Layout) -> list[_Block]:
    """Return the sections whose checksums are in the foot."""
    at = layout.sections
    return [
        _Block("checksums", None, at.checksums, at.metadata, layout.checksums_crc),
        _Block("metadata", None, at.metadata, at.foot, layout.metadata_crc),
    ]


def _runs(layout: Layout, checksums: bytes) -> Iterator[list[_Block]]:
    """Yield lists of consecutive blocks, in the order of the file."""
    at, size = layout.sections, layout.head.block_size
    step = _RUN_BYTES // min(size, _RUN_BYTES)
    values = iter(np.frombuffer(checksums, "<u4").tolist())
    for name, first, stop in (
        ("tokens", at.tokens, at.documents),
        ("documents", at.documents, at.checksums),
    ):
        starts = range(first, stop, size)
        for number in range(0, len(starts), step):
            yield [
                _Block(name, index, start, min(start + size, stop), next(values))
                for index, start in enumerate(starts[number : number + step], number)
            ]
    yield _sections(layout)


def _damaged(blocks: Sequence[_Block], data: bytes) -> list[_Block]:
    """Return the blocks that do not match; `data` begins with the first block."""
    start = blocks[0].start
    return [block for block in blocks if not _is_right(block, data, start)]


def _is_right(block: _Block, data: bytes, start: int) -> bool:
    """Return whether a block matches its checksum; `data` begins at byte `start`."""
    part = memoryview(data)[block.start - start : block.stop - start]
    return zlib.crc32(part) == block.checksum


def _write_repaired(
    output: Output, file: OpenFile, source: _SourceOfBlocks, damaged: Sequence[_Block]
) -> None:
    """Write the file; replace its damaged blocks by those of the copy."""
    done = 0
    for group in _adjacent(damaged):
        _copy(output, file, done, group[0].start)
        output.write(source.read(group))
        done = group[-1].stop
    _copy(output, file, done, file.num_bytes)


def _adjacent(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Yield lists of adjacent blocks, each read by one request."""
    group: list[_Block] = []
    for block in blocks:
        is_full = group and block.stop - group[0].start > _RUN_BYTES
        if group and (block.start != group[-1].stop or is_full):
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _copy(output: Output, file: OpenFile, start: int, stop: int) -> None:
    """Write the bytes `[start, stop)` of the file."""
    for first in range(start, stop, _RUN_BYTES):
        output.write(file.read(first, min(first + _RUN_BYTES, stop)))
