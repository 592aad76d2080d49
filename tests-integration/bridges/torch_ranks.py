"""Trains a small model: a function for one process, a program for each of several.

python torch_ranks.py WRAPPER FILE, with RANK and the like as `torchrun` sets them
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler

VOCABULARY = 256


def curriculum_of() -> Curriculum:
    reader = PositionReader(10_000, dtype="uint8")
    return Curriculum(reader, [Phase(5, 4, 17), Phase(3, 4, 33)])


def sampler_of() -> Sampler:
    return curriculum_of().sampler(seed=3)


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


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with its parameters divided among the ranks, by FSDP."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    shards = fully_shard(model, mesh=mesh)
    shards.set_force_sum_reduction_for_comms(True)  # Gloo has no other reduction
    return shards


def prepared(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model as Accelerate prepares it for the ranks."""
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(model)


WRAPPERS = {"ddp": DistributedDataParallel, "fsdp": sharded, "accelerate": prepared}


def main(wrapper: str, file: str) -> None:
    distributed.init_process_group("gloo")
    weights = trained_weights(WRAPPERS[wrapper])
    if isinstance(weights, DTensor):
        weights = weights.full_tensor()
    if distributed.get_rank() == 0:
        torch.save(weights, file)
    distributed.barrier()  # a rank that leaves early may crash the others
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
