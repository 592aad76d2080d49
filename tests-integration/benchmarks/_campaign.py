"""The parts that campaigns share: known contents, checks of readers, writers to kill.

A corpus of a campaign consists of parts. A part is the documents of one seed. A content
is the seeds of a corpus's parts in order: `(1, 2)` is part 1 with part 2 appended.
Every reader must find one of a few contents, token for token, or the campaign fails.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from roxxel_format import Roxxel, ShardError
from roxxel_format.cli import main as command

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

Exist = Literal["keep", "replace", "append", "error"]
Content = tuple[int, ...]

VOCAB_SIZE = 50_000
MAX_SHARD_BYTES = 40_000
NUM_DOCUMENTS = 60


@cache
def part(seed: int) -> list[npt.NDArray[np.uint16]]:
    """Return the documents of one part, about 15 shards of them."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(1, VOCAB_SIZE, rng.integers(0, 8000), np.uint16)
        for _ in range(NUM_DOCUMENTS)
    ]


@dataclass(frozen=True)
class Reference:
    """The right tokens and documents of one content.

    Attributes:
        documents: Without separators.
        line: All tokens; the separator 0 follows each document.
        stops: One past the last token of each document.
    """

    documents: list[npt.NDArray[np.uint16]]
    line: npt.NDArray[np.uint16]
    stops: npt.NDArray[np.int64]

    def spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the right result of `document_spans`."""
        starts = np.concatenate([[0], self.stops[:-1]]).clip(start, stop)
        stops = self.stops.clip(start, stop)
        found = np.stack([np.arange(len(stops)), starts, stops], axis=1)
        return found[starts < stops]


@cache
def reference(content: Content) -> Reference:
    """Return the right tokens and documents of one content."""
    documents = [document for seed in content for document in part(seed)]
    separator = np.zeros(1, np.uint16)
    line = np.concatenate([each for one in documents for each in (one, separator)])
    stops = np.cumsum([len(document) + 1 for document in documents])
    return Reference(documents, line, stops)


class WrongTokensError(AssertionError):
    """A reader returned tokens that belong to none of the allowed contents."""


def content_of(corpus: Roxxel, contents: Iterable[Content]) -> Content:
    """Read a whole corpus, and return the one of `contents` that it equals.

    Raises:
        ShardError: The corpus cannot be read.
        WrongTokensError: The corpus has none of these contents.
    """
    line = corpus.tokens[:]
    for content in contents:
        if np.array_equal(line, reference(content).line):
            for ours, right in zip(
                corpus.documents, reference(content).documents, strict=True
            ):
                check(np.array_equal(ours, right), "documents")
            return content
    raise WrongTokensError(f"{line.size} tokens that were never written as one corpus")


def check_at_random(corpus: Roxxel, content: Content, chance: random.Random) -> None:
    """Read some tokens with a random method.

    Raises:
        ShardError: The corpus cannot be read any longer.
        WrongTokensError: A token differs from this content.
    """
    right = reference(content)
    length = chance.choice((1, 100, 5000))
    starts = [chance.randrange(len(right.line) - length) for _ in range(4)]
    start, stop = starts[0], starts[0] + length
    match chance.randrange(5):
        case 0:
            batch = corpus.read(starts, length, np.int32)
            expected = np.stack([right.line[at : at + length] for at in starts])
            check(np.array_equal(batch, expected), "read")
        case 1:
            tokens = corpus.tokens[start:stop]
            check(np.array_equal(tokens, right.line[start:stop]), "tokens")
        case 2:
            index = chance.randrange(len(right.documents))
            check(
                np.array_equal(corpus.documents[index], right.documents[index]),
                f"document {index}",
            )
        case 3:
            spans = corpus.document_spans(start, stop)
            check(np.array_equal(spans, right.spans(start, stop)), "document_spans")
        case _:
            corpus.will_need(starts, length)


def check(is_right: bool, what: str) -> None:
    """Raise a WrongTokensError that names `what` unless `is_right`."""
    if not is_right:
        raise WrongTokensError(f"{what}: not what was written")


def write(pattern: str, documents: Iterable[Any], exist: Exist) -> None:
    """Write documents to the corpus of a campaign, without output on stderr."""
    with contextlib.redirect_stderr(io.StringIO()):
        Roxxel(pattern).write(
            documents,
            separator=0,
            vocab_size=VOCAB_SIZE,
            max_shard_bytes=MAX_SHARD_BYTES,
            exist=exist,
        )


def clean(pattern: str, *, by_command: bool) -> bool:
    """Remove what killed writers left.

    The result is False if a writer is running, or has not made a file yet.
    """
    if not by_command:
        try:
            Roxxel(pattern).remove_leftovers()
        except (BlockingIOError, FileNotFoundError):
            return False
        return True
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = command(["clean", pattern])
    assert code in {0, 1}, f"clean ended with code {code}: {output.getvalue()}"
    return code == 0


def check_clean(corpus: Roxxel) -> None:
    """Check that the folder of a corpus holds the corpus, its manifest and locks."""
    left = corpus.leftovers()
    assert not left, f"leftovers after cleaning: {left}"
    shards = {Path(path).name for path in corpus.paths}
    [folder] = {Path(path).parent for path in corpus.paths}
    others = [path for path in folder.rglob("*") if path.name not in shards]
    wrong = [
        path.name
        for path in others
        if path.is_dir() or path.suffix not in {".json", ".lock", ".writers"}
    ]
    assert not wrong, f"files of no corpus after cleaning: {wrong}"


@dataclass(frozen=True)
class Kind:
    """A kind of write.

    Attributes:
        exist: The argument of `Roxxel.write`.
        before: The content before the write; None for no corpus.
        after: The content after part 2 is written.
        later: The part that the next write adds.
    """

    exist: Exist
    before: Content | None
    after: Content
    later: int

    def prepare(self, folder: Path) -> str:
        """Make a new folder with the corpus before the write; return its pattern."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        pattern = f"{folder}/c_*.rox"
        for seed in self.before or ():
            write(pattern, part(seed), "append")
        return pattern

    def then(self, content: Content | None) -> Content:
        """Return the content after the next write to `content`."""
        if self.exist == "append" and content is not None:
            return (*content, self.later)
        return (self.later,)

    @property
    def contents(self) -> list[Content]:
        """Every content that the corpus may have."""
        known = [self.before, self.after, self.then(self.before), self.then(self.after)]
        return [content for content in dict.fromkeys(known) if content is not None]


KINDS = {
    "create": Kind("keep", None, (2,), later=2),
    "append": Kind("append", (1,), (1, 2), later=3),
    "replace": Kind("replace", (1,), (2,), later=3),
}


def committed(pattern: str, kind: Kind) -> Content | None:
    """Return the content that a new reader finds; None if nothing was committed.

    Raises:
        ShardError: There was a corpus, and now there is none.
        WrongTokensError: The corpus has none of the contents of this kind.
    """
    try:
        with Roxxel(pattern, check="blocks") as corpus:
            content = content_of(corpus, kind.contents)
            assert corpus.verify().ok
            return content
    except (ShardError, FileNotFoundError):
        if kind.before is not None:
            raise
        return None


class Killed:
    """A writer in a separate process.

    The process prints a byte when it begins, after all imports, and one for each write
    that has returned.

    Args:
        arguments: Arguments of this program that make the process a writer.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        if not self._stdout.read(1):
            raise ChildProcessError(f"no writer began: {self._process.wait()}")
        self._began = time.perf_counter()

    def finish_s(self) -> float:
        """Wait until one write returned; return the seconds since the beginning."""
        assert self._stdout.read(1), f"no write ended: {self._process.wait()}"
        seconds = time.perf_counter() - self._began
        self.end()
        return seconds

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def kill(self, delay_s: float) -> int:
        """Kill the process after a delay; return how many writes had returned.

        A process that ended before the kill must have exit code 0.
        """
        time.sleep(max(0.0, self._began + delay_s - time.perf_counter()))
        self._process.send_signal(signal.SIGKILL)
        return self.end()

    def end(self) -> int:
        """Wait for the end; return how many writes returned after `finish_s`."""
        with self._stdout:
            returned = len(self._stdout.read())
        code = self._process.wait()
        assert code in {0, -signal.SIGKILL}, f"the writer ended with code {code}"
        return returned


def counts_in_words(found: Mapping[str, int]) -> str:
    """Return the counts as lines of `what: number`."""
    return "\n".join(f"{what}: {found[what]}" for what in sorted(found))
