"""A few fixed runs whose order is guarded across releases; prints their digests.

The digests in test_golden.py are never regenerated for a released version of the
arithmetic: a change of the order is a new version.
"""

from __future__ import annotations

import hashlib
import sys

from roxxel_curriculum import Curriculum, Phase, make_key, permute, repeat
from roxxel_curriculum.testing import PositionReader


def runs() -> dict[str, Curriculum]:
    """Return the guarded runs by name."""
    return {
        "one source, two lengths, two epochs": Curriculum(
            PositionReader(50_000, "web"), [Phase(200, 8, 33), Phase(9, 2, 257)]
        ),
        "blend with exhaustion, overlap and skips": Curriculum(
            PositionReader(300_000, "web"),
            [
                Phase(50, 16, 129, {"self": 0.7, "code": 0.2, "math": 0.1}),
                Phase(40, 4, 513, {"self": 0.5, "code": 0.5}),
                Phase(30, 16, 129, {"code": 1, "math": 3, "self": 1e-3}),
            ],
            {"math": PositionReader(9_000, "m"), "code": PositionReader(40_000, "c")},
            policies={"code": repeat(3), "math": "repeat"},
            overlap=1,
            skips=[(20, 7), (60, 1)],
        ),
        "five sources of 10**13 tokens": Curriculum(
            PositionReader(10**13, "web"),
            [Phase(10**8, 64, 1025, {"self": 5, "a": 2, "b": 1, "c": 0.5, "d": 1e-6})],
            {name: PositionReader(10**13, name) for name in "abcd"},
            longest=32769,
        ),
    }


def digests() -> dict[str, str]:
    """Return a digest of the windows and batches of each run."""
    found: dict[str, str] = {}
    for name, curriculum in runs().items():
        digest = hashlib.blake2b(digest_size=16)
        sampler = curriculum.sampler(42)
        total = sampler.total_steps
        steps = range(total) if total < 1000 else (0, 1, 2, 3, total // 2, total - 1)
        for step in steps:
            windows = sampler.windows(step)
            for part in (windows.source, windows.start, sampler.batch(step)):
                digest.update(part.astype("<i8").tobytes())
        found[name] = digest.hexdigest()
    digest = hashlib.blake2b(digest_size=16)
    for n in (1, 2, 3, 48, 49, 1000, 2**31, 10**15):
        index = range(min(n, 100))
        digest.update(permute(index, n, make_key(n, "x")).astype("<i8").tobytes())
    found["bijection"] = digest.hexdigest()
    return found


if __name__ == "__main__":
    for run, hexdigest in digests().items():
        sys.stdout.write(f"{hexdigest}  {run}\n")
