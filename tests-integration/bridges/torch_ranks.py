"""Trains a small model: a function for one process, a program for each of several.

python torch_ranks.py RANK WORLD_SIZE PORT FILE
"""

# pyright: basic, reportMissingImports=false
# PyTorch is in the environment of the session `bridges` alone.

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_curriculum.torch import step_loader
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler

VOCABULARY = 256


def sampler_of() -> Sampler:
    reader = PositionReader(10_000, dtype="uint8")
    return Curriculum(reader, [Phase(5, 4, 17), Phase(3, 4, 33)]).sampler(seed=3)


def trained_weights(wrap: Any = None) -> torch.Tensor:
    """Return the weights of a model after all steps of the sampler."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(VOCABULARY, 2)
    trained = model if wrap is None else wrap(model)
    optimizer = torch.optim.SGD(trained.parameters(), 0.5)
    for batch in step_loader(sampler_of()):
        optimizer.zero_grad()
        (trained(batch) - 1).square().mean().backward()
        optimizer.step()
    return model.weight.detach()


def main(rank: str, world_size: str, port: str, file: str) -> None:
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world_size)
    )
    weights = trained_weights(DistributedDataParallel)
    if rank == "0":
        torch.save(weights, file)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
