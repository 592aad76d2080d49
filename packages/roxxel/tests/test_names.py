from __future__ import annotations

import importlib
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
import roxxel
import roxxel.checkpoint
import roxxel_curriculum
import roxxel_format

from .helpers import run_python

if TYPE_CHECKING:
    from types import ModuleType

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

    own = {"Run", "checkpoint", "open_run", "sharding"}
    own |= {"check_replay", "check_verify", "diff", "replay", "sweep", "verify"}
    own |= {"load_schedule", "parse_schedule", "schedule_from", "withdraw"}
    assert set(roxxel.__all__) == {
        name for name in names | own if not name.startswith("__")
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


def test_the_sharding_modules_have_the_names_of_their_member() -> None:
    for name in ("sharding", "sharding.placement", "sharding.presets"):
        own = importlib.import_module(f"roxxel.{name}")
        member = importlib.import_module(f"roxxel_loader.{name}")

        assert sorted(own.__all__) == sorted(member.__all__)
        for public in own.__all__:
            assert getattr(own, public) is getattr(member, public)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trianer'"):
        _ = roxxel.Trianer  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_a_star_import_needs_no_extra() -> None:
    program = (
        "import sys\n"
        "for library in ('polars', 'pyarrow', 'datasets'):\n"
        "    sys.modules[library] = None\n"
        "import roxxel\n"
        "from roxxel import *\n"
        "SQLiteDataset, sharding.ShardingConfig\n"
        "assert 'PolarsDataset' in dir(roxxel)\n"
        "try: roxxel.PolarsDataset\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert done.stderr == ""
    assert "needs polars; install it: " in done.stdout


def test_a_listing_shows_the_public_names_alone() -> None:
    listed = run_python("-c", "import roxxel; print(*dir(roxxel))").stdout.split()

    lazy = ["ArrowDataset", "HuggingFaceDataset", "ParquetDataset", "PolarsDataset"]
    names = {*roxxel.__all__, *lazy, "huggingface_stream", "__version__"}
    assert sorted(listed) == sorted(names)  # with the extras and without


@pytest.mark.parametrize("member", [roxxel_format, roxxel_curriculum])
def test_a_listing_of_a_member_shows_its_public_names_alone(member: ModuleType) -> None:
    assert dir(member) == sorted(member.__all__)


def test_importing_roxxel_imports_nothing_but_python_s_own() -> None:
    program = (
        "import sys; before = set(sys.modules); import roxxel\n"
        "print(*set(sys.modules) - before)\n"
    )

    loaded = set(run_python("-W", "error", "-c", program).stdout.split())

    # Not even its own modules: each is imported with the first name that needs it.
    assert {
        name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names
    } == {"roxxel"}


def test_the_names_of_the_data_bring_no_jax() -> None:
    program = (
        "import sys\n"
        "from roxxel import Curriculum, Phase, Roxxel, __version__\n"
        "assert not {'jax', 'flax'} & set(sys.modules), 'heavy'\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_models_bring_neither_the_trainer_nor_an_extra() -> None:
    program = (
        "import sys\n"
        "import roxxel.models, roxxel.models.huggingface\n"
        "heavy = {'safetensors', 'orbax', 'roxxel_train', 'roxxel_format'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    done = run_python("-W", "error", "-c", program)

    assert (done.returncode, done.stderr) == (0, "")


def test_every_extra_has_its_plain_name_and_all_brings_them() -> None:
    found = {*(metadata.metadata("roxxel").get_all("Provides-Extra") or [])}
    brought: dict[str, set[str]] = {}
    for requirement in metadata.requires("roxxel") or []:
        wanted, _, marker = requirement.partition(";")
        for extra in re.findall(r"extra == ['\"](.+?)['\"]", marker):
            brought.setdefault(extra, set()).add(wanted)

    plain = {"tokenizers", "parquet", "zstd", "ray", "bucket", "hf", "plot"}
    assert plain | {"tensorboard", "wandb", "all"} <= found
    assert brought["all"] == set[str]().union(*brought.values())
