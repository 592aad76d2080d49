"""Sharded, memory-mapped token files for language model training.

A corpus is a set of `.rox` shards. A shard holds tokens, an index of documents, and a
checksum for every block. `Roxxel` writes a corpus from any iterator of documents, and
reads it as one line of tokens: all documents, one after another. The package depends
only on numpy.
"""

from roxxel_store.errors import BucketError

from roxxel_format._read.cached import CacheStatus
from roxxel_format._read.verify import VerifyReport
from roxxel_format._version import __version__
from roxxel_format._write.compact import Compaction
from roxxel_format._write.recipe import TokenizerBackend, WriteArguments
from roxxel_format._write.shard_writer import ShardWriter
from roxxel_format._write.summary import WriteSummary
from roxxel_format.corpus import Roxxel
from roxxel_format.errors import ChecksumError, ShardError
from roxxel_format.token_reader import TokenReader

__all__ = [
    "BucketError",
    "CacheStatus",
    "ChecksumError",
    "Compaction",
    "Roxxel",
    "ShardError",
    "ShardWriter",
    "TokenReader",
    "TokenizerBackend",
    "VerifyReport",
    "WriteArguments",
    "WriteSummary",
    "__version__",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules that hold them."""
    return __all__
