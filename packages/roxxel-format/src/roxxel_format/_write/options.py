"""The arguments of a write, how a corpus records them, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from roxxel_store.amounts import short_size
from roxxel_store.arguments import as_integer, other_arguments
from roxxel_store.screen import printable

from roxxel_format._spec.dtypes import stored_dtype, stored_name
from roxxel_format._spec.tables import MIN_UNIT
from roxxel_format._write.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

_MAX_NAMED = 3
Exist = Literal["keep", "replace", "append", "error"]
TokenizerBackend = Literal["auto", "tokenizers", "fastokens"]
"""The library that encodes. `"auto"` is `fastokens` if it is installed and supports the
tokenizer, else `tokenizers`. The ids are the same, so no corpus records it.
"""


class Separator(Enum):
    """A separator that the tokenizer determines."""

    OF_TOKENIZER = "the tokenizer's own"
    """The tokenizer's end-of-text token; no separator without a tokenizer."""

    @staticmethod
    def parse(text: str) -> int | str | None:
        """Parse a token id, the name of a token, or `none`."""
        if text == "none":
            return None
        try:
            return int(text)
        except ValueError:
            from roxxel_store.command import as_text

            return as_text(text)


class WriteArguments(TypedDict, total=False):
    """The keyword arguments that every write has; see `Roxxel.write`.

    Annotate your own function with it if the function passes them on.

    Example:
        >>> from typing import Unpack
        >>> def write_ids(ids: list[int], **arguments: Unpack[WriteArguments]) -> None:
        ...     Roxxel("mine_*.rox").write([ids], **arguments)
        >>> write_ids([5, 6, 7], separator=0, vocab_size=100)
    """

    separator: float | bytes | str | Separator | None
    block_size: int
    max_shard_bytes: int | None
    pack: int | None
    dtype: npt.DTypeLike | None
    vocab_size: int | None
    tokenizer: object | None
    tokenizer_backend: TokenizerBackend
    special_tokens: bool
    without_columns: Sequence[str]
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The arguments of a write; see `Roxxel.write`.

    Attributes:
        fields: The fields of rows.
        also: Further arguments that determine the documents, as JSON. The corpus
            records them, and `exist="keep"` compares them.
        chooses: Returns whether to write a document with an origin. It gets the tokens
            without the separator, and their number with it. None writes all.

    Example:
        >>> WriteOptions(dtype=np.uint16, max_shard_bytes=1 << 20).dtype_name
        'uint16'
    """

    separator: float | bytes | str | Separator | None = Separator.OF_TOKENIZER
    block_size: int = 4096
    max_shard_bytes: int | None = None
    dtype: npt.DTypeLike | None = None
    vocab_size: int | None = None
    tokenizer: object | None = None
    tokenizer_backend: TokenizerBackend = "auto"
    special_tokens: bool = False
    metadata: Mapping[str, Any] | None = None
    fields: Fields = field(default_factory=Fields)
    also: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chooses: Callable[[Tokens, int], bool] | None = None
    pack: int | None = None
    without_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        known = get_args(TokenizerBackend)
        if self.tokenizer_backend not in known:
            raise ValueError(
                f"tokenizer_backend must be one of {', '.join(known)}, got "
                f"{self.tokenizer_backend!r}"
            )
        if isinstance(self.without_columns, str):
            raise TypeError(
                f"without_columns is the text {self.without_columns!r}; pass a list of "
                "names"
            )
        if self.dtype is not None:
            object.__setattr__(self, "dtype", stored_name(self.dtype))
        for name in ("block_size", "max_shard_bytes", "vocab_size"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_integer(name, value))
        if self.pack is not None:
            object.__setattr__(self, "pack", as_integer("pack", self.pack, MIN_UNIT))

    @property
    def dtype_name(self) -> str | None:
        """Name of the item type."""
        return None if self.dtype is None else str(self.dtype)

    def has(self, tokens: Tokens, dtype: str | None, num_separators: int) -> bool:
        """Return whether a document is written; `dtype` is that of the corpus."""
        if self.chooses is None or tokens.ndim != 1:
            return True
        if dtype is not None and tokens.dtype.kind not in "biu":
            tokens = tokens.astype(stored_dtype(dtype))  # As a reader finds it.
        return self.chooses(tokens, tokens.size + num_separators)

    @property
    def separator_value(self) -> float | bytes | None:
        """The separator, after the tokenizer has decided it."""
        separator = self.separator
        assert not isinstance(separator, (str, Separator))  # noqa: S101 - decided
        # A scalar of numpy is a number.
        return getattr(separator, "item", lambda: separator)()

    def may_make_several(self, exist: Exist) -> bool:
        """Return whether a write may make several shards, or add a shard."""
        return self.max_shard_bytes is not None or exist == "append"

    def recorded(self, tokenizer_identity: str | None) -> dict[str, Any]:
        """Return the arguments that determine the content of the shards, for JSON."""
        separator: Any = self.separator_value
        if isinstance(separator, bytes):
            separator = {"bytes": separator.hex()}
        recorded = {
            "separator": separator,
            "special_tokens": self.special_tokens,
            "block_size": self.block_size,
            "max_shard_bytes": self.max_shard_bytes,
            "dtype": self.dtype_name,
            "vocab_size": self.vocab_size,
            "tokenizer": tokenizer_identity,
        }
        if self.pack is not None:
            recorded["pack"] = self.pack
        return {**recorded, **self.fields.recorded, **self.also}


def difference(recorded: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Describe how the arguments of a write differ from the recorded arguments."""
    if not recorded:
        return "made with other arguments (not recorded)"
    # Inputs are too long for a message; a preparation says which of them differs.
    has_inputs = isinstance(arguments.get("inputs"), dict)
    past, now = (
        {
            name: _as_given(name, value)
            for name, value in each.items()
            if not (name == "inputs" and has_inputs)
        }
        for each in (recorded, arguments)
    )
    pairs = other_arguments(past, now) or "its inputs are not recorded"
    return f"made with other arguments ({pairs})"


def _as_given(name: str, value: Any) -> Any:
    """Return a recorded argument as the caller gives it."""
    if name == "split" and value is not None:
        return f"{value[0]}={value[1]}".removeprefix("=")
    if name == "separator" and isinstance(value, dict):
        return bytes.fromhex(cast("dict[str, str]", value)["bytes"])
    return value


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
        num_dropped: Characters of the texts that the tokenizer dropped, because its
            vocabulary lacks them and a token for unknown characters.
        left_out: Files in the given folders and patterns that are not data, such as
            `README.md`.
        unit: Tokens of a bin; None unless the documents are packed.
        num_padding: Tokens that are padding of bins.
        num_cut: Documents longer than a bin, which were cut.
        switched_off: What was random in the tokenizer, such as `dropout 0.1`, and was
            switched off, so that equal texts have equal tokens.

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
    unit: int | None = None
    num_padding: int = 0
    num_cut: int = 0
    switched_off: str = ""

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
            f"{verb} {self.num_tokens:,} token{'s' * (self.num_tokens != 1)} "
            f"({self.dtype}) in {self.num_documents:,} "
            f"document{'s' * (self.num_documents != 1)} and {self.num_shards:,} "
            f"shard{'s' * (self.num_shards != 1)}, {short_size(self.num_bytes)}"
            f"{self._packed_note()}{dropped}"
            f"{self.switched_off_note(self.switched_off)}"
            f"{self.left_out_note(self.left_out)}"
        )

    def _packed_note(self) -> str:
        """Return the summary's sentence about bins."""
        if self.unit is None:
            return ""
        share = 100 * self.num_padding / max(1, self.num_tokens)
        num_bins = self.num_tokens // self.unit
        return (
            f"; packed into {num_bins:,} bin{'s' * (num_bins != 1)} of "
            f"{self.unit:,} tokens ({share:.3f} % padding); {self.num_cut:,} longer "
            f"document{'s' * (self.num_cut != 1)} cut"
        )

    @staticmethod
    def switched_off_note(what: str) -> str:
        """Return the summary's sentence about a tokenizer that sampled."""
        if not what:
            return ""
        return (
            f"; the tokenizer's {what} was switched off, so that equal texts have "
            "equal tokens"
        )

    @staticmethod
    def left_out_note(files: Sequence[str]) -> str:
        """Return the end of a summary that counts the files that are no data."""
        if not files:
            return ""
        # Hidden files come last: the others may be missed.
        named = sorted(files, key=lambda file: "/." in f"/{file}")[:_MAX_NAMED]
        shown = ", ".join(printable(file.rpartition("/")[2]) for file in named)
        what = "file that is" if len(files) == 1 else "files that are"
        more = ", ..." if len(files) > _MAX_NAMED else ""
        return f"; left out {len(files):,} {what} no data ({shown}{more})"
