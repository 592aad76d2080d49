"""The arguments of a write, how a corpus records them, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from roxxel_store.arguments import as_integer

from roxxel_format._spec.dtypes import stored_name
from roxxel_format._write.fields import Fields
from roxxel_format.naming import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.side import Side

_MAX_NAMED = 3
Exist = Literal["keep", "replace", "append", "error"]


class Separator(Enum):
    """A separator that the tokenizer determines."""

    OF_TOKENIZER = "the tokenizer's own"
    """The tokenizer's end-of-text token; no separator without a tokenizer."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The arguments of a write; `write_options` creates them for public functions.

    `dtype` is the name of an item type. `fields` names the fields of rows. `inputs`
    identifies the documents before they are read, or is None. Only a preparation from
    files sets the last three fields. `side` selects the documents of one corpus of a
    split. `shuffle` is the seed that orders the units, and the documents in each unit.
    `skip_bad` is whether damaged inputs are skipped.
    """

    separator: float | bytes | str | Separator | None = None
    block_size: int = 4096
    max_shard_bytes: int | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    tokenizer: object | None = None
    special_tokens: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    fields: Fields = field(default_factory=Fields)
    inputs: Inputs | str | None = None
    side: Side | None = None
    shuffle: int | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        for name in ("block_size", "max_shard_bytes", "vocab_size"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_integer(name, value))

    def may_make_several(self, exist: Exist) -> bool:
        """Return whether a write may make several shards, or add a shard."""
        return self.max_shard_bytes is not None or exist == "append"

    def recorded(self, tokenizer_identity: str | None) -> dict[str, Any]:
        """Return the arguments that determine the content of the shards, for JSON."""
        separator: Any = self.separator
        if isinstance(separator, bytes):
            separator = {"bytes": separator.hex()}
        elif separator is not None:
            separator = getattr(separator, "item", lambda: self.separator)()
        recorded = {
            "separator": separator,
            "block_size": self.block_size,
            "max_shard_bytes": self.max_shard_bytes,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "tokenizer": tokenizer_identity,
        }
        # Omitted if False, so that records of earlier releases compare equal.
        if self.special_tokens:
            recorded["special_tokens"] = True
        recorded |= self.fields.recorded
        if self.side is not None:
            recorded["split"] = self.side.recorded()
        if self.shuffle is not None:
            recorded["shuffle"] = self.shuffle
        if self.skip_bad:
            recorded["skip_bad"] = True
        inputs = self.inputs
        if inputs is not None:
            recorded["inputs"] = inputs if isinstance(inputs, str) else inputs.recorded
        return recorded


def write_options(
    separator: float | bytes | str | Separator | None,
    block_size: int,
    max_shard_bytes: int | None,
    dtype: npt.DTypeLike | None,
    vocab_size: int | None,
    tokenizer: object | None,
    *,
    special_tokens: bool,
    metadata: Mapping[str, Any] | None,
    fields: Fields | None = None,
    shuffle: int | None = None,
    skip_bad: bool = False,
) -> WriteOptions:
    """Return the arguments of a public function as options; see `Roxxel.write`."""
    return WriteOptions(
        separator=separator,
        block_size=block_size,
        max_shard_bytes=max_shard_bytes,
        dtype=None if dtype is None else stored_name(dtype),
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        special_tokens=special_tokens,
        metadata=dict(metadata or {}),
        fields=fields or Fields(),
        shuffle=shuffle,
        skip_bad=skip_bad,
    )


def difference(
    recorded: Mapping[str, Any], arguments: Mapping[str, Any], inputs: Inputs | None
) -> str:
    """Describe how the arguments of a write differ from the recorded arguments."""
    if not recorded:
        return "made with other arguments (not recorded)"
    differing = [
        name
        for name in {**arguments, **recorded}
        if recorded.get(name) != arguments.get(name)
    ]
    if differing == ["inputs"] and inputs is not None and "inputs" in recorded:
        return inputs.difference(recorded["inputs"])
    pairs = ", ".join(
        f"{name}={recorded.get(name)!r} in the corpus, {arguments.get(name)!r} given"
        for name in differing
        if name != "inputs" or inputs is None
    )
    return f"made with other arguments ({pairs or 'its inputs are not recorded'})"


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """The result of a write: the shards that it wrote or kept.

    Attributes:
        paths: The shards of this write, or of the corpus that was kept.
        num_documents: Documents in these shards.
        num_tokens: Tokens in these shards, separators included.
        num_bytes: Size of these shards.
        dtype: Name of the item type.
        fingerprint: Fingerprint of these shards in this order.
        kept: Whether an existing corpus was kept.
        duration_s: Seconds from the call to the return.
        sync_s: Seconds of `duration_s` spent flushing shards to the disk.
        num_dropped: Characters of the texts that the tokenizer left out, because its
            vocabulary has neither them nor a token for unknown characters.
        left_out: The files of the given folders and patterns that are no data, such as
            `README.md`.

    Example:
        >>> summary = Roxxel("ids_*.rox").write([[5, 6, 7], [8]], vocab_size=100)
        >>> summary.num_tokens, summary.dtype, summary.kept
        (4, 'uint16', False)
    """

    paths: tuple[str, ...]
    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    fingerprint: str
    kept: bool
    duration_s: float
    sync_s: float
    num_dropped: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.paths)

    def __str__(self) -> str:
        verb = "kept" if self.kept else "wrote"
        dropped = ""
        if self.num_dropped:
            dropped = (
                f"; the tokenizer has no token for {self.num_dropped:,} characters of "
                "the texts, and left them out"
            )
        return (
            f"{verb} {self.num_tokens:,} tokens ({self.dtype}) in "
            f"{self.num_documents:,} documents and {self.num_shards:,} "
            f"shard{'s' * (self.num_shards != 1)}, {self.num_bytes:,} bytes{dropped}"
            f"{left_out_note(self.left_out)}"
        )


def left_out_note(files: Sequence[str]) -> str:
    """Return the end of a summary that counts and names the files that are no data."""
    if not files:
        return ""
    # Hidden files come last: the others may be missed.
    named = sorted(files, key=lambda file: "/." in f"/{file}")[:_MAX_NAMED]
    shown = ", ".join(printable(file.rpartition("/")[2]) for file in named)
    what = "file that is" if len(files) == 1 else "files that are"
    more = ", ..." if len(files) > _MAX_NAMED else ""
    return f"; left out {len(files):,} {what} no data ({shown}{more})"
