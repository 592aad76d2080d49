"""Kills writers at random moments; a reader finds the old corpus or the new one.

A child process creates, appends to or replaces a corpus of about 15 shards, and is
killed by SIGKILL at a random moment of that write. Another process reads the corpus
constantly, in one thread that stays with its version, and in one that repeatedly opens
the corpus. After every kill:

- the corpus holds the old content or the new one, byte for byte: the new content if the
  write had returned, and nothing if a first write had not committed;
- no reader got a token of any other content, and no reader crashed; during an append,
  no reader raised an error;
- a later write of the same kind succeeds, and after `clean` the folder holds exactly
  the shards of the corpus.

    python tests-integration/benchmarks/format_kill.py              # 6 kills
    python tests-integration/benchmarks/format_kill.py --kills 50   # the campaign
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Self

import _campaign
from _campaign import Content, Killed, Kind
from roxxel_format import Roxxel, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument(
        "--kinds", nargs="+", choices=_campaign.KINDS, default=[*_campaign.KINDS]
    )
    parser.add_argument("--write", nargs=2, metavar=("PATTERN", "KIND"))
    parser.add_argument("--read", nargs=2, metavar=("PATTERN", "KIND"))
    options = parser.parse_args()
    if options.write:
        write(*options.write)
    elif options.read:
        read(*options.read)
    else:
        seed = random.randrange(2**32) if options.seed is None else options.seed
        run(options.kills, options.kinds, seed)


def write(pattern: str, kind: str) -> None:
    """Write part 2; print a byte at the start and another at the end."""
    documents = _campaign.part(2)
    os.write(1, b".")
    _campaign.write(pattern, documents, _campaign.KINDS[kind].exist)
    os.write(1, b".")


def run(num_kills: int, kinds: list[str], seed: int) -> None:
    """Kill `num_kills` writers, and print how often each outcome was found."""
    print(f"{num_kills} kills from seed {seed}")
    chance = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as home:
        duration_s = {
            kind: max(Trial(home, kind).duration_s() for _ in range(2))
            for kind in kinds
        }
        for kind, seconds in duration_s.items():
            print(f"{kind} takes {seconds * 1e3:.0f} ms without a kill")
        for number in range(num_kills):
            kind = chance.choice(kinds)
            trial = Trial(home, kind)
            delay_s = chance.random() * duration_s[kind]
            try:
                found.update(trial.run(delay_s, by_command=number % 2 == 0))
            except BaseException:
                print(f"kill {number}: {kind}, {delay_s:.4f} s", file=sys.stderr)
                raise
    print(_campaign.counts_in_words(found))


class Trial:
    """One write that is killed, in its own folder.

    Args:
        home: Holds the folder of the trial.
        name: Name of a kind in `_campaign.KINDS`.
    """

    def __init__(self, home: str, name: str) -> None:
        self._name = name
        self._kind = _campaign.KINDS[name]
        self._pattern = self._kind.prepare(Path(home, "trial"))

    def duration_s(self) -> float:
        """Return the seconds of a write next to readers, without a kill."""
        with Readers(self._pattern, self._name):
            return self._start().finish_s()

    def run(self, delay_s: float, *, by_command: bool) -> collections.Counter[str]:
        """Kill the write, check everything, and return the count of each outcome."""
        with Readers(self._pattern, self._name) as readers:
            has_returned = self._start().kill(delay_s) > 0
            content = _campaign.committed(self._pattern, self._kind)
            if has_returned:
                assert content == self._kind.after, "the write had returned"
            _campaign.write(
                self._pattern, _campaign.part(self._kind.later), self._kind.exist
            )
            then = self._kind.then(content)
            assert _campaign.committed(self._pattern, self._kind) == then, (
                "after the later write"
            )
            assert _campaign.clean(self._pattern, by_command=by_command)
            _campaign.check_clean(Roxxel(self._pattern))
            assert _campaign.committed(self._pattern, self._kind) == then, (
                "after cleaning"
            )
        when = "after it returned" if has_returned else "while it wrote"
        holds = {None: "nothing", self._kind.after: "the new corpus"}.get(
            content, "the old corpus"
        )
        found = collections.Counter({f"{self._name} killed {when}, {holds}": 1})
        found.update(readers.found)
        return found

    def _start(self) -> Killed:
        return Killed(__file__, "--write", self._pattern, self._name)


class Readers:
    """A process that reads a corpus constantly, while the block lasts.

    Attributes:
        found: Count of each outcome of the readers, set when the block ends.
    """

    def __init__(self, pattern: str, name: str) -> None:
        self.found: dict[str, int] = {}
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--read", pattern, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "reading\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        output, _ = self._process.communicate()
        code = self._process.returncode
        if error is None:
            assert code == 0, f"the readers ended with code {code}"
            self.found = json.loads(output)


def read(pattern: str, name: str) -> None:
    """Read until the standard input ends; then print the count of each outcome."""
    watch = Watch(pattern, _campaign.KINDS[name])
    threads = [
        threading.Thread(target=watch.run, args=[work])
        for work in (watch.hold, watch.open_again)
    ]
    for thread in threads:
        thread.start()
    print("reading", flush=True)
    sys.stdin.read()
    watch.is_over.set()
    for thread in threads:
        thread.join()
    for error in watch.errors:
        traceback.print_exception(error)
    print(json.dumps({f"{name}: {what}": n for what, n in watch.found.items()}))
    sys.exit(1 if watch.errors else 0)


class Watch:
    """Two threads that read a corpus, and the outcomes.

    Attributes:
        is_over: Set when the threads are to end.
        errors: Errors that ended a thread early.
        found: Count of each outcome.
    """

    def __init__(self, pattern: str, kind: Kind) -> None:
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.found: collections.Counter[str] = collections.Counter()
        self._pattern = pattern
        self._kind = kind

    def run(self, work: Callable[[], None]) -> None:
        """Work, and keep any error."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the process prints it and exits with 1
            self.errors.append(error)

    def hold(self) -> None:
        """Open the corpus once, and keep reading from that version."""
        chance = random.Random(0)
        while True:
            corpus = Roxxel(self._pattern)
            content = self._opened(corpus, self._kind.before)
            if content is not None:
                break
            if self.is_over.is_set():
                return
        while not self.is_over.is_set():
            try:
                _campaign.check_at_random(corpus, content, chance)
                self.found["reads of an open corpus"] += 1
            except ShardError:
                if self._kind.exist != "replace":
                    raise
                self.found["errors of an open corpus"] += 1

    def open_again(self) -> None:
        """Repeatedly open the corpus."""
        before = self._kind.before
        while not self.is_over.is_set():
            with Roxxel(self._pattern) as corpus:
                content = self._opened(corpus, before)
            if content is None:
                continue
            contents = self._kind.contents
            if before is not None:
                is_later = contents.index(content) >= contents.index(before)
                assert is_later, "a corpus went back to its past"
            before = content

    def _opened(self, corpus: Roxxel, before: Content | None) -> Content | None:
        """Return the content of a newly opened corpus; None after an allowed error.

        An error is allowed until the first commit, and during a replacement.
        """
        try:
            content = _campaign.content_of(corpus, self._kind.contents)
        except (ShardError, FileNotFoundError):
            if before is not None and self._kind.exist != "replace":
                raise
            self.found["errors at opening"] += 1
            return None
        self.found["whole corpora read"] += 1
        return content


if __name__ == "__main__":
    main()
