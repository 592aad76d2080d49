"""Tunix trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# Tunix is in the environment of the session `bridges` alone.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from . import blended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> blended.Program:
    folder = blended.write(tmp_path_factory.mktemp("tunix"))
    return blended.Program("tunix_run.py", folder)


def named(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"tokens": batch["tokens"], "mask": batch["loss_mask"]}


def test_tunix_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: blended.Program,
) -> None:
    train.check_resumed(kill=7)

    assert train.check_batches("whole", named) > 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("gradient_accumulation_steps=2", "leave it out"),
        ("max_steps=12", "set max_steps to 10"),
    ],
)
def test_tunix_refuses_what_would_read_other_batches(
    train: blended.Program, option: str, words: str
) -> None:
    train.check_is_refused(option, option, words=words)


def test_tunix_refuses_the_checkpoint_of_another_corpus(
    train: blended.Program, tmp_path: Path
) -> None:
    train.check_other_corpus_is_refused(tmp_path)
