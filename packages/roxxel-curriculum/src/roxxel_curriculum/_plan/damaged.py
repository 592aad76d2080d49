"""Blocks of tokens that a run masks because their bytes are damaged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """A damaged block of tokens, which a run masks from `step` on.

    A block is the tokens under one checksum of a shard. From this step on, the tokens
    of the block are 0 in every batch, whatever bytes the block has, and their
    `loss_mask` is 0. A block that is repaired later stays masked.

    Attributes:
        step: First training step that masks the tokens.
        source: Name of the source.
        start: First token of the block in the source.
        stop: One past the last token.
        file: Name of the shard, without its folder.
        block: Index of the block in the tokens of the shard.
        byte_offset: Offset of the block in the shard.

    Example:
        >>> block = DamagedBlock(20, "self", 256, 512, "web_00000.rox", 1, 4608)
        >>> print(block)
        block 1 (byte 4608 on) of web_00000.rox: tokens [256, 512) of self
    """

    step: int
    source: str
    start: int
    stop: int
    file: str
    block: int
    byte_offset: int

    def __str__(self) -> str:
        """Return the location of the block as text."""
        return (
            f"block {self.block} (byte {self.byte_offset} on) of {self.file}: "
            f"tokens [{self.start}, {self.stop}) of {self.source}"
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the block."""
        return self.stop - self.start

    def holds(self, source: str, start: int, stop: int) -> bool:
        """Return whether the block has some of the tokens `[start, stop)`."""
        return self.source == source and start < self.stop and self.start < stop

    def to_json(self) -> dict[str, Any]:
        """Return the block for the state of a run."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> DamagedBlock:
        """Return the block that `to_json` wrote."""
        return cls(**{each.name: entry[each.name] for each in fields(cls)})


def in_order(blocks: Iterable[DamagedBlock]) -> tuple[DamagedBlock, ...]:
    """Return the distinct blocks by step, source and tokens."""
    return tuple(sorted(set(blocks), key=order))


def order(block: DamagedBlock) -> tuple[int, str, int, int]:
    """Return the key by which the blocks of a run are sorted."""
    return block.step, block.source, block.start, block.stop


def recorded_damage(state: Mapping[str, Any]) -> tuple[DamagedBlock, ...]:
    """Return the damaged blocks that a state records."""
    return tuple(map(DamagedBlock.from_json, state.get("damaged", ())))
