"""Runs `clean` again and again while a writer works; the writer must lose nothing.

A child process creates, appends to or replaces a corpus. Meanwhile this process removes
leftovers, by the method and by the command. An earlier writer of the same corpus was
killed, so there are leftovers to remove. Each write must return without an error, with
its tokens in the corpus. After the last `clean`, the folder must have no file of the
killed writer.

    python tests-integration/benchmarks/format_clean.py               # 3 writes
    python tests-integration/benchmarks/format_clean.py --writes 30   # the campaign
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import tempfile
from pathlib import Path

import _campaign
from _campaign import Killed
from roxxel_format import Roxxel

MOST_S = 0.1  # The latest moment at which the first writer is killed.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", type=int, default=3)
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--write", nargs=3, metavar=("PATTERN", "KIND", "PART"))
    options = parser.parse_args()
    if options.write:
        pattern, kind, part = options.write
        write(pattern, kind, int(part))
        return
    seed = random.randrange(2**32) if options.seed is None else options.seed
    run(options.writes, seed)


def write(pattern: str, kind: str, part: int) -> None:
    """Write a part; print a byte at the start and another at the end."""
    documents = _campaign.part(part)
    os.write(1, b".")
    _campaign.write(pattern, documents, _campaign.KINDS[kind].exist)
    os.write(1, b".")


def run(num_writes: int, seed: int) -> None:
    """Write and clean, and print the count of each outcome of `clean`."""
    print(f"{num_writes} writes from seed {seed}")
    chance = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    names = list(_campaign.KINDS)
    with tempfile.TemporaryDirectory() as home:
        for number in range(num_writes):
            name = names[number % len(names)]
            try:
                found.update(trial(Path(home, "trial"), name, chance))
            except BaseException:
                print(f"write {number}: {name}", file=sys.stderr)
                raise
    print(_campaign.counts_in_words(found))


def trial(folder: Path, name: str, chance: random.Random) -> collections.Counter[str]:
    """Clean during one write, check it, and return the count of each outcome."""
    kind = _campaign.KINDS[name]
    pattern = kind.prepare(folder)
    found: collections.Counter[str] = collections.Counter()

    dead = Killed(__file__, "--write", pattern, name, "2")
    dead.kill(chance.random() * MOST_S)
    then = kind.then(_campaign.committed(pattern, kind))
    found[f"leftovers of the writer that was killed: {name}"] += bool(
        Roxxel(pattern).leftovers()
    )

    living = Killed(__file__, "--write", pattern, name, str(kind.later))
    while living.is_alive():
        done = _campaign.clean(pattern, by_command=chance.random() < 0.5)
        found["cleaned" if done else "refused because a writer runs or begins"] += 1
    assert living.end() == 1, "the write did not return"
    assert _campaign.committed(pattern, kind) == then

    assert _campaign.clean(pattern, by_command=False)
    assert _campaign.committed(pattern, kind) == then
    _campaign.check_clean(Roxxel(pattern))
    found[f"whole after cleaning: {name}"] += 1
    return found


if __name__ == "__main__":
    main()
