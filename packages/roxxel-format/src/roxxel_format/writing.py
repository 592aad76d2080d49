"""The parts of one write of a corpus, for `roxxel-prepare`.

`CorpusWrite` checks the arguments, its `job` writes shards in any process, and one
commit lists them. To write documents from an iterator, call `Roxxel.write` instead.
"""

from __future__ import annotations

from roxxel_format._spec.tables import NewShards
from roxxel_format._store.corpus_files import CorpusFiles
from roxxel_format._write.driver import CorpusWrite
from roxxel_format._write.fields import Fields
from roxxel_format._write.job import WriteJob
from roxxel_format._write.options import Exist, Separator, WriteOptions
from roxxel_format._write.place import Place
from roxxel_format._write.recipe import Recipe
from roxxel_format._write.series import NoDocumentsError

__all__ = [
    "CorpusFiles",
    "CorpusWrite",
    "Exist",
    "Fields",
    "NewShards",
    "NoDocumentsError",
    "Place",
    "Recipe",
    "Separator",
    "WriteJob",
    "WriteOptions",
]
