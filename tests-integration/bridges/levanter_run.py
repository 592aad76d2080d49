"""Trains a few steps with levanter; see `blended`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import blended
import jax
import jmp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text.datasets import LmDataConfig
from levanter.distributed import DistributedConfig
from levanter.main import train_lm
from levanter.models.qwen3_moe import Qwen3MoeConfig
from levanter.optim.config import AdamConfig
from levanter.tracker.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from roxxel_loader.bridges import levanter as bridge
from tokenizers import Tokenizer, models


def spy(seen: str, kill: int) -> None:
    """Save what the trainer gets and the losses, and kill the program."""
    train_step = Trainer.train_step

    def spied(self: Any, state: Any, batch: Any) -> Any:
        step = int(state.step)
        if step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        arrays = {
            "tokens": batch.tokens.array,
            "weights": batch.loss_weight.array,
            "segments": batch.attn_mask.segment_ids[0].array,
        }
        whole: Any = process_allgather(arrays, tiled=True)
        info = train_step(self, state, batch)
        if jax.process_index() == 0:
            np.savez(Path(seen) / f"{step}-0.npz", **whole)
            blended.add_loss(seen, step, float(info.loss))
        return info

    Trainer.train_step = spied


def write_tokenizer(folder: Path) -> str:
    """Write a tokenizer: else levanter asks the hub for one."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {str(token): token for token in range(256)}
    made = Tokenizer(models.WordLevel(vocabulary, "0"))
    made.save(str(folder / "tokenizer.json"))
    of_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(of_class))
    return str(folder)


def main() -> None:
    corpus, run, seen, kill = sys.argv[1:]
    spy(seen, int(kill))
    address, count, index = blended.place()
    tokenizer = write_tokenizer(Path(f"{run}-tokenizer-{index}"))
    sizes = {"hidden_dim": 32, "intermediate_dim": 64, "moe_intermediate_dim": 32}
    heads = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 2}
    config = train_lm.TrainLmConfig(
        data=LmDataConfig(tokenizer=tokenizer),
        model=Qwen3MoeConfig(
            max_seq_len=129,
            num_experts=4,
            num_experts_per_tok=2,
            tokenizer=tokenizer,
            **sizes,
            **heads,
        ),
        optimizer=AdamConfig(),
        trainer=TrainerConfig(
            id="r",
            tracker=NoopConfig(),
            mp=jmp.get_policy("f32"),
            require_accelerator=False,
            distributed=DistributedConfig(address, count, index)
            if count > 1
            else DistributedConfig(),
            checkpointer=CheckpointerConfig(
                base_path=f"{run}/checkpoints", save_interval=None, keep=[{"every": 2}]
            ),
        ),
    )
    curriculum = blended.curriculum_of(corpus)
    fed = bridge.feed(config, curriculum, blended.SEED, record=f"{run}/log")
    train_lm.main(fed)


if __name__ == "__main__":
    main()
