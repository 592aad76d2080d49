from __future__ import annotations

import importlib
import re

import pytest
import roxxel
import roxxel.checkpoint

from .helpers import run_python

MEMBERS = (
    "roxxel_format",
    "roxxel_curriculum",
    "roxxel_loader",
    "roxxel_ckpt",
    "roxxel_train",
)


def test_the_names_are_those_of_the_members() -> None:
    names: set[str] = set()
    for member in MEMBERS:
        names.update(importlib.import_module(member).__all__)

    assert set(roxxel.__all__) == {
        name for name in names | {"checkpoint"} if not name.startswith("__")
    }


@pytest.mark.parametrize("member", MEMBERS)
def test_every_name_is_the_member_s_own_object(member: str) -> None:
    module = importlib.import_module(member)

    for name in set(module.__all__) - {"__version__", "TokenReader"}:
        assert getattr(roxxel, name) is getattr(module, name)


def test_the_checkpoint_module_has_the_names_of_its_member() -> None:
    member = importlib.import_module("roxxel_ckpt")

    assert sorted(roxxel.checkpoint.__all__) == sorted(member.__all__)
    assert roxxel.checkpoint.Checkpointer is member.Checkpointer


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trianer'"):
        _ = roxxel.Trianer  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_editors_see_the_names_before_they_are_imported() -> None:
    listed = run_python("-c", "import roxxel; print(*dir(roxxel))")

    assert {"Roxxel", "Trainer", "checkpoint"} <= set(listed.stdout.split())


def test_a_listing_shows_the_public_names_alone() -> None:
    listed = run_python("-c", "import roxxel; print(*dir(roxxel))").stdout.split()

    assert sorted(listed) == sorted([*roxxel.__all__, "__version__"])


def test_importing_roxxel_imports_neither_jax_nor_numpy() -> None:
    program = (
        "import sys, roxxel\n"
        "assert not {'jax', 'flax', 'numpy'} & set(sys.modules), 'heavy'\n"
        "from roxxel import Curriculum, Phase, Roxxel, __version__\n"
        "assert 'jax' not in sys.modules, 'jax'\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")


def test_importing_roxxel_is_quick() -> None:
    # The best of three: a busy machine slows one, not the import.
    assert min(_import_us() for _ in range(3)) < 300_000


def _import_us() -> int:
    shown = run_python("-X", "importtime", "-c", "import roxxel").stderr
    last = shown.splitlines()[-1]
    found = re.fullmatch(r"import time:\s*\d+ \|\s*(\d+) \| roxxel", last)
    assert found is not None, last
    return int(found[1])
