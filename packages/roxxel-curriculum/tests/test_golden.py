"""The order is the same in every release, process and interpreter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from roxxel_curriculum import ARITHMETIC_VERSION, Curriculum, Sampler

from .golden import digests, runs

GOLDEN = {
    "one source, two lengths, two epochs": "f3e490d4589b3faf3ff0cb1de003e2f0",
    "blend with exhaustion, overlap and skips": "f5c2987e7899da9f84c31fa687f92c7f",
    "five sources of 10**13 tokens": "bf843402003ff90ce673e1ab99f92268",
    "bijection": "0ad5e855a1a02d5212ef3e5449deb8b8",
}


def test_the_order_is_that_of_every_release_of_this_arithmetic() -> None:
    assert ARITHMETIC_VERSION == 1
    assert digests() == GOLDEN


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_another_interpreter_with_another_hash_seed_agrees(hash_seed: str) -> None:
    program = Path(__file__).with_name("golden.py")
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}

    done = subprocess.run(
        [sys.executable, program],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )

    lines = [line.split("  ", 1) for line in done.stdout.splitlines()]
    assert {name: hexdigest for hexdigest, name in lines} == GOLDEN


def test_a_curriculum_and_its_sampler_travel_to_another_process() -> None:
    for curriculum in runs().values():
        sampler = curriculum.sampler(42)
        sampler.batch(3)

        there: tuple[Sampler, Curriculum] = pickle.loads(  # noqa: S301 - our own bytes
            pickle.dumps((sampler, curriculum))
        )
        for copy in (there[0], there[1].sampler(42)):
            assert np.array_equal(copy.batch(5), sampler.batch(5))
