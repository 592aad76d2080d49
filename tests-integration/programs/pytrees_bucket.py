"""Save random pytrees below a URL after functional updates, and load them again."""

import itertools
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
from hypothesis import assume, given, settings
from roxxel_ckpt import Checkpointer

# The kinds of trees that the tests of the package use.
kinds = runpy.run_path(
    str(Path(__file__).parents[2] / "packages/roxxel-ckpt/tests/trees.py"),
    run_name="trees",
)
numbers = itertools.count()


@settings(max_examples=6, deadline=None, database=None)
@given(kinds["trees"](jax.device_count()))
def comes_back(first):
    assume(any(np.size(leaf) for leaf in jax.tree.leaves(first)))
    second = kinds["updated"](first)
    with Checkpointer(f"{sys.argv[1]}/{next(numbers)}", timeout=600) as checkpointer:
        checkpointer.save(1, state=first)
        checkpointer.save(2, state=second)
        checkpointer.wait()
        assert kinds["bits"](checkpointer.load(like=first)) == kinds["bits"](second)
        assert kinds["bits"](checkpointer.load(1, like=first)) == kinds["bits"](first)


comes_back()
print("loaded")
