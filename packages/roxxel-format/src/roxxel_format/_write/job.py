"""Write documents as shards of one corpus, in any process.

A job can be pickled. The process that began a write may use it, or a task on another
machine, or a process of a preparation, in a folder or in a bucket. The shards are the
same in each case, and only their names differ:

- `Place.new_shards`: names that no other write has, for one process;
- `attempt`: names that no other attempt has, because a scheduler may run a task twice;
- `unit`: the same names every time, because a unit has the same shards every time.

All names begin with the digest of the write or the job, so its files can be found.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_format._write.intake import intake_of, load_tokenizer
from roxxel_format._write.series import write_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from roxxel_format._spec.tables import NewShards
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.place import Place
    from roxxel_format._write.recipe import Recipe
    from roxxel_format._write.series import Arrange
    from roxxel_format._write.tokenizers import Tokenizer

# The number in a shard's name is the number of the task and 18 random digits.
_PER_TASK = 10**18


@dataclass
class WriteJob:
    """The picklable data that writing shards of one corpus needs.

    Attributes:
        digest: 12 hexadecimal digits, the beginning of the shards' names.
        target: The corpus: the names of its files on a disk, or the URL of its pattern.
        recipe: The arguments of the write. If its item type is open, the first document
            decides it.
        tokenizer: The tokenizer, if this process has loaded it.
    """

    digest: str
    target: CorpusName | str
    recipe: Recipe
    tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Each process loads the tokenizer once; an object that was passed is pickled.
        return self.__dict__ | {"tokenizer": None}

    def unit(
        self,
        place: Place,
        number: int,
        documents: Iterable[object],
        ending: Callable[[], Mapping[str, object]],
        arrange: Arrange | None = None,
    ) -> NewShards:
        """Write unit `number` at a place; its shards always have the same names.

        Args:
            place: The place of the corpus.
            number: Number of the unit.
            documents: Rows with an origin.
            ending: Returns metadata for the last shard, after the last document.
            arrange: Returns the documents in the order in which to write them.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        if self.tokenizer is None:
            self.tokenizer = load_tokenizer(self.recipe)
        intake = intake_of(self.recipe, self.tokenizer)
        new_path = place.new_shards(self.digest, number)
        # The shards of a failed unit stay: another process may have finished the unit.
        return write_shards(place, intake, new_path, documents, ending, arrange=arrange)

    def attempt(
        self, place: Place, task: int, documents: Iterable[object]
    ) -> NewShards:
        """Write the documents of a task; every attempt has other names.

        Args:
            place: The place of the corpus.
            task: Number of the task.
            documents: Rows with an origin.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        number = task * _PER_TASK + secrets.randbelow(_PER_TASK)
        # Rows are read only with an `ending`; a task has nothing to add there.
        return self.unit(place, number, documents, dict)
