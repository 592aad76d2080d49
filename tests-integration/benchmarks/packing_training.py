"""Measures training on packed documents against windows, by held-out loss per document.

The documents are paragraphs of the standard library's sources, one in twenty held out.
Three runs train on equally many tokens from the same initial weights: windows whose
attention crosses documents, windows whose attention stays inside them, and bins. Each
held-out document is read alone, from its start, and counts once.

    python tests-integration/benchmarks/packing_training.py
    python tests-integration/benchmarks/packing_training.py --fitting --steps 1000
"""

from __future__ import annotations

import argparse
import os
import platform
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel
from roxxel.models import Llama, LlamaConfig, next_token_loss

if TYPE_CHECKING:
    import numpy.typing as npt

SEQ_LEN = 257
BATCH_SIZE = 8
END = 256
ARMS = ("windows", "windows with segments", "bins")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--fitting", action="store_true", help="train on documents that fit into a bin"
    )
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, jax {jax.__version__}")
    config = config_of(width=48, num_layers=2)
    with tempfile.TemporaryDirectory() as folder:
        documents = paragraphs(fitting=options.fitting)
        compare(Path(folder), documents, config, options.steps, options.seeds)


def config_of(width: int, num_layers: int) -> LlamaConfig:
    """Return the sizes of a small model of bytes."""
    return LlamaConfig.tiny(
        vocab_size=END + 1,
        width=width,
        hidden=3 * width,
        num_layers=num_layers,
        context=SEQ_LEN,
    )


def compare(
    folder: Path,
    documents: tuple[list[bytes], list[bytes]],
    config: LlamaConfig,
    steps: int,
    num_seeds: int,
) -> None:
    """Print the held-out losses of each arm and seed."""
    trained, held_out = documents
    for name, unit in (("dense", None), ("packed", SEQ_LEN)):
        corpus = Roxxel(folder / f"{name}_*.rox")
        print(corpus.write(trained, separator=END, vocab_size=END + 1, pack=unit))
    rows = documents_alone(held_out)
    print(f"{len(held_out)} held-out documents; loss in nats a byte: by document, of")
    print("the first 32 bytes of each, of all bytes")
    for arm in ARMS:
        found = np.array(
            [run(folder, config, arm, steps, seed, rows) for seed in range(num_seeds)]
        )
        for seed, losses in enumerate(found):
            print(f"{arm:>22} seed {seed}: {_figures(losses)}")
        print(f"{arm:>22}   mean: {_figures(found.mean(0))}", flush=True)


def _figures(losses: npt.NDArray[np.float64]) -> str:
    return "  ".join(f"{loss:.4f}" for loss in losses)


def paragraphs(*, fitting: bool) -> tuple[list[bytes], list[bytes]]:
    """Return paragraphs of the standard library: to train on, and held out."""
    found: list[bytes] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found += [text for text in path.read_bytes().split(b"\n\n") if text.strip()]
    if fitting:
        found = [each for each in found if len(each) < SEQ_LEN]
    return [each for n, each in enumerate(found) if n % 20], found[::20]


def documents_alone(documents: list[bytes]) -> dict[str, npt.NDArray[np.int32]]:
    """Return the held-out documents that fit, one per row, as fields of batches."""
    fitting = [each for each in documents if 32 < len(each) < SEQ_LEN]
    tokens = np.zeros((len(fitting), SEQ_LEN), np.int32)
    segments = np.zeros_like(tokens)
    for row, text in enumerate(fitting):
        tokens[row, : len(text) + 1] = [*text, END]
        segments[row, : len(text) + 1] = 1
    first = segments * (np.arange(SEQ_LEN) <= 32)
    return {"tokens": tokens, "segment_ids": segments, "first": first}


def run(
    folder: Path,
    config: LlamaConfig,
    arm: str,
    steps: int,
    seed: int,
    rows: dict[str, npt.NDArray[np.int32]],
) -> tuple[float, float, float]:
    """Train one arm; return its held-out losses."""
    corpus = Roxxel(folder / f"{'packed' if arm == 'bins' else 'dense'}_*.rox")
    curriculum = Curriculum(corpus, [Phase(steps, BATCH_SIZE, SEQ_LEN)])
    sampler = curriculum.sampler(seed, fields=("tokens", "segment_ids", "loss_mask"))
    model = Llama(config, rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, _rule(steps), wrt=nnx.Param)
    for step in range(steps):
        batch = sampler.batch(step)
        if arm == "windows":
            batch["segment_ids"][...] = 1
        _update(model, optimizer, batch)
    return _held_out(model, rows)


@cache
def _rule(steps: int) -> optax.GradientTransformation:
    """Return the optimizer of all runs: another object would compile again."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10 + 1, steps)
    return optax.adamw(rate)


@nnx.jit
def _update(model: Llama, optimizer: nnx.Optimizer[Llama], batch: Any) -> None:
    def loss(model: Llama) -> jax.Array:
        return next_token_loss(model, batch)[0]

    gradients = nnx.grad(loss)(model)
    optimizer.update(model, gradients)


@nnx.jit
def _row_losses(model: Llama, batch: Any) -> tuple[jax.Array, jax.Array]:
    _, logged = next_token_loss(model, batch)
    return logged["row_loss"], logged["row_weight"]


def _held_out(
    model: Llama, rows: dict[str, npt.NDArray[np.int32]]
) -> tuple[float, float, float]:
    whole, first = _losses(model, rows, "segment_ids"), _losses(model, rows, "first")
    by_byte = float((whole[0] * whole[1]).sum() / whole[1].sum())
    return float(whole[0].mean()), float(first[0].mean()), by_byte


def _losses(
    model: Llama, rows: dict[str, npt.NDArray[np.int32]], mask: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the loss and the number of bytes of each row."""
    found: list[tuple[jax.Array, jax.Array]] = []
    stop = len(rows["tokens"]) // BATCH_SIZE * BATCH_SIZE
    for start in range(0, stop, BATCH_SIZE):
        part = {name: each[start : start + BATCH_SIZE] for name, each in rows.items()}
        batch = {name: part[name] for name in ("tokens", "segment_ids")}
        batch["loss_mask"] = part[mask]
        found.append(_row_losses(model, batch))
    losses, weights = zip(*found, strict=True)
    return np.asarray(jnp.concatenate(losses)), np.asarray(jnp.concatenate(weights))


if __name__ == "__main__":
    main()
