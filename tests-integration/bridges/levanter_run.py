"""Trains a few steps with levanter: `levanter_run.py CORPUS RUN SEEN KILL`.

What levanter's loader gives at each step is saved as `SEEN/STEP.npz`, and the losses
are in `SEEN/losses.txt`. The program kills itself before it trains step `KILL`.
"""

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
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text.datasets import LmDataConfig
from levanter.main import train_lm
from levanter.models.qwen3_moe import Qwen3MoeConfig
from levanter.optim.config import AdamConfig
from levanter.tracker.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from roxxel_loader.bridges import levanter as bridge
from tokenizers import Tokenizer, models


def main() -> None:
    corpus, run, seen, kill = sys.argv[1:]
    train_step = Trainer.train_step

    def spied(self: Any, state: Any, batch: Any) -> Any:
        step = int(state.step)
        if step == int(kill):
            os.kill(os.getpid(), signal.SIGKILL)
        arrays = {
            "tokens": batch.tokens.array,
            "weights": batch.loss_weight.array,
            "segments": batch.attn_mask.segment_ids[0].array,
        }
        np.savez(Path(seen) / f"{step}.npz", **jax.device_get(arrays))
        info = train_step(self, state, batch)
        with (Path(seen) / "losses.txt").open("a") as file:
            file.write(f"{step} {float(info.loss)!r}\n")
        return info

    Trainer.train_step = spied
    tokenizer = Path(run) / "tokenizer"  # else levanter asks the hub for one
    tokenizer.mkdir(parents=True, exist_ok=True)
    vocabulary = {str(token): token for token in range(256)}
    made = Tokenizer(models.WordLevel(vocabulary, "0"))
    made.save(str(tokenizer / "tokenizer.json"))
    of_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(of_class))
    sizes = {"hidden_dim": 32, "intermediate_dim": 64, "moe_intermediate_dim": 32}
    heads = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 2}
    config = train_lm.TrainLmConfig(
        data=LmDataConfig(tokenizer=str(tokenizer)),
        model=Qwen3MoeConfig(
            max_seq_len=129,
            num_experts=4,
            num_experts_per_tok=2,
            tokenizer=str(tokenizer),
            **sizes,
            **heads,
        ),
        optimizer=AdamConfig(),
        trainer=TrainerConfig(
            id="r",
            tracker=NoopConfig(),
            mp=jmp.get_policy("f32"),
            require_accelerator=False,
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
