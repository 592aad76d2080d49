"""The parts of one write of a corpus, for `roxxel-prepare`.

A `Recipe` holds the arguments, `CorpusWrite` prepares them, a `WriteJob` writes shards
in any process, and one commit lists them. To write documents from an iterator, call
`Roxxel.write` instead.
"""

from __future__ import annotations

from roxxel_format._corpus_name import CorpusFiles
from roxxel_format._spec.manifest import NewShards
from roxxel_format._write.casting import NoDocumentsError
from roxxel_format._write.driver import CorpusWrite, WriteJob, commit
from roxxel_format._write.place import Place
from roxxel_format._write.recipe import Exist, Fields, Recipe, Separator, Side

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
    "Side",
    "WriteJob",
    "commit",
]
