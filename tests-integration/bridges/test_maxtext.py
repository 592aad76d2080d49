"""MaxText trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# MaxText is in the environment of the session `bridges` alone.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from . import blended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EXPERTS = (
    *("decoder_block=mixtral", "num_experts=4", "num_experts_per_tok=2"),
    *("base_moe_mlp_dim=64", "ici_fsdp_parallelism=2", "ici_context_parallelism=2"),
)
"""Four experts, on four devices: rows over two of them, columns over the others."""


class Sized(blended.Program):
    """Starts the program with enough rows a device for every phase."""

    def __call__(self, run: str, *options: str, **how: Any) -> blended.Trained:
        return super().__call__(run, *(options or ("per_device_batch_size=8",)), **how)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Sized:
    folder = blended.write(tmp_path_factory.mktemp("maxtext"))
    return Sized("maxtext_run.py", folder)


def named(batch: Mapping[str, Any]) -> dict[str, Any]:
    segments = batch["segment_ids"][:, :-1]
    return {
        "inputs": batch["tokens"][:, :-1],
        "targets": batch["tokens"][:, 1:],
        "inputs_position": batch["positions"][:, :-1],
        "inputs_segmentation": segments,
        "targets_segmentation": np.where(batch["loss_mask"][:, 1:] == 0, 0, segments),
    }


def test_maxtext_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: Sized,
) -> None:
    train.check_resumed(kill=5)

    assert train.check_batches("whole", named) > 0


def test_two_processes_go_on_where_one_stopped(train: Sized) -> None:
    assert train("one", kill=5).code != 0

    done = train("one", "per_device_batch_size=4", processes=2)

    assert done.code == 0, done.said
    first = min(done.losses)
    assert 0 < first <= 5
    train.check_batches("one", named, range(first, blended.STEPS))
    train.logged("one")


def test_experts_and_a_context_axis_get_the_batches_and_resume(
    train: Sized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    settings = (*EXPERTS, "per_device_batch_size=2")
    assert train("experts", *settings, kill=5).code != 0

    done = train("experts", *settings)

    assert done.code == 0, done.said
    assert min(done.losses) > 0
    assert train.check_batches("experts", named) > 0
    train.logged("experts")


def test_maxtext_refuses_a_phase_that_it_would_cut(train: Sized) -> None:
    rows = "per_device_batch_size=4"
    train.check_is_refused("cut", rows, words="only the first 4 rows")


def test_maxtext_refuses_the_checkpoint_of_another_corpus(
    train: Sized, tmp_path: Path
) -> None:
    train.check_other_corpus_is_refused(tmp_path)
