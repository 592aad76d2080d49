"""The file that keeps the tokenizer of a corpus.

A corpus can be read as text everywhere only if its tokenizer goes with it. So the files
of the tokenizer lie beside the shards as one file, whose name holds its digest.
docs/format.md, section 10.8, is the specification.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from roxxel_store.records import RecordKind

from roxxel_format._spec.manifest import as_table
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
FILES_BESIDE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    TEMPLATE_FILE,
    "generation_config.json",
)
"""Files beside a `tokenizer.json` that say how it is used."""
MAX_SIZE = 1 << 28

_KIND = RecordKind(
    "kept tokenizer",
    version=1,
    remedy="copy the corpus again, or pass the tokenizer (--tokenizer)",
    error=ShardError,
    mark="roxxel tokenizer",
    is_ascii=False,
    needs=("files",),
)


def pack_tokenizer(files: Mapping[str, str]) -> bytes:
    """Return the content of the file; `files` are texts by name."""
    return _KIND.to_bytes({"files": dict(sorted(files.items()))})


def digest_of_tokenizer(data: bytes) -> str:
    """Return the 16 hexadecimal digits that the name of the file holds."""
    return blake2b(data, digest_size=8).hexdigest()


def parse_tokenizer(data: bytes, path: str) -> dict[str, str]:
    """Return the files of a tokenizer, texts by name.

    Raises:
        ShardError: The content does not match the digest in the file's name.
    """
    if digest_of_tokenizer(data) not in path.replace("\\", "/").rpartition("/")[2]:
        raise ShardError(
            f"{path}: does not have the digest that its name holds, so it is damaged; "
            f"{_KIND.remedy}"
        )
    return as_table(_KIND.parse(data, path)["files"])
