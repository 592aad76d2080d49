"""The tokenizer `"bytes"`: the UTF-8 bytes of a text, and a token that ends it.

It needs no file and no library, and a corpus records it like any other tokenizer. So
`roxxel show --text` prints such a corpus, and a blend with a corpus of another
tokenizer is noticed. A corpus of the type uint8 has no room for the end of a text and
records no tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

END_OF_TEXT = "<|endoftext|>"
"""Name of the token that ends a text, in this tokenizer."""

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_ALPHABET = tuple(
    chr(byte if byte in _PRINTABLE else 256 + _OTHERS.index(byte))
    for byte in range(256)
)
"""The character by which a byte-level model of `tokenizers` spells each byte.

As in GPT-2 (Radford et al., 2019), printable bytes stand for themselves, and the other
bytes are numbered from U+0100.
"""


class ByteTokenizer:
    """Encodes a text as its UTF-8 bytes; token 256 ends a text.

    Its methods are those of a `tiktoken.Encoding`, with arrays instead of lists.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode_ordinary("to").tolist()
        [116, 111]
        >>> tokenizer.decode_bytes([116, 111, 256])
        b'to<|endoftext|>'
    """

    name = "bytes"
    n_vocab = 257

    def __init__(self) -> None:
        self._special_tokens = {END_OF_TEXT: 256}

    def encode_ordinary(self, text: str) -> npt.NDArray[Any]:
        """Return the bytes of a text, even where it spells the end-of-text token."""
        return np.frombuffer(text.encode(), np.uint8)

    def encode(self, text: str, *, allowed_special: str) -> npt.NDArray[Any]:
        """Return the bytes of a text; 256 where it spells the end-of-text token."""
        assert allowed_special == "all"  # noqa: S101 - the only call, by `load`
        first, *others = map(self.encode_ordinary, text.split(END_OF_TEXT))
        end = np.array([256], np.uint16)
        return np.concatenate([first, *(x for part in others for x in (end, part))])

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens; the name of the end-of-text token for 256."""
        end = END_OF_TEXT.encode()
        return b"".join(end if t == 256 else bytes([t]) for t in tokens)

    def to_str(self) -> str:
        """Return the definition, whose hash identifies the tokenizer."""
        return f"UTF-8 bytes as tokens 0 to 255; {END_OF_TEXT} as 256"
