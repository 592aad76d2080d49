"""A corpus, a model and a config file, as small as they can be."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import declaration_of, make_pair
from roxxel_ckpt import Checkpointer, read_description
from roxxel_format import Roxxel
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pytest
    from roxxel.config import RunConfig

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


def make(width=4, seed=0, vocabulary=50):
    model = nnx.Embed(vocabulary, width, rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    return model, optimizer, loss


def loss(model, batch):
    return jnp.square(model(batch) - 1.0).mean()


def two_things():
    return make()[:2]


def needs_depth(depth, width=4):
    return make(width)


def takes_all(**arguments):
    return make(**arguments)
"""

CONFIG = """\
# A run to learn from.
model = "tiny:make"
save_path = "run"
seed = 3

[sources]
self = "web_*.rox"
code = { path = "code.rox", policy = 2 }

[[phases]]
steps = 4
batch_size = 2
seq_len = 8
weights = { self = 0.5, code = 0.5 }

[[phases]]
steps = 2
batch_size = 1
seq_len = 16

[model_args]
width = 2

[trainer]
log_every = 1
checkpoint_every = 2
eval_every = 3
hang_after_s = 600

[eval]
sources = { self = "held_out.rox" }
phases = [{ steps = 1, batch_size = 2, seq_len = 8 }]
"""

LLAMA = """\
model = "roxxel.models:llama"
save_path = "run"

[sources]
self = "web_*.rox"

[[phases]]
steps = {steps}
batch_size = 4
seq_len = 33

[model_args]
total_steps = 8
preset = "tiny"
vocab_size = 64
width = 8
hidden = 8
num_heads = 2
num_layers = 1

[trainer]
log_every = 1
"""


def write_project(folder: Path, config: str = CONFIG) -> Path:
    """Write corpora, model and config into a folder; return the config's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("web_*.rox", 8), ("code.rox", 4), ("held_out.rox", 2)):
        documents = (np.arange(start, start + 40) % 50 for start in range(count))
        Roxxel(folder / name).write(documents, vocab_size=50)
    (folder / "tiny.py").write_text(MODEL)
    path = folder / "first.toml"
    path.write_text(config)
    return path


def kept_configs(run: Path) -> list[int]:
    """Return the steps at which the config of a run changed, the first included."""
    starts = [x.row for x in RunFolder(run).starts() if "config" in x.row]
    before = [None, *(row["config"] for row in starts)]
    return [
        row["step"]
        for row, last in zip(starts, before, strict=False)
        if row["config"] != last
    ]


def keep(config: RunConfig, run: Path, step: int = 0) -> None:
    """Leave in a run's folder what a start with this config leaves there."""
    run.mkdir(parents=True, exist_ok=True)
    text = declaration_of(config, run).text
    (run / "config.toml").write_text(text)
    start = {"kind": "start", "step": step, "config": text}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(start) + "\n")


def llama_config(folder: Path, steps: int, end: str) -> Path:
    """Write a config of a small Llama, whose table `trainer` goes on with `end`."""
    path = folder / f"{steps}.toml"
    path.write_text(LLAMA.format(steps=steps) + end)
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run the command `roxxel`; return what it printed."""
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def forge(
    run: Path,
    step: int,
    *,
    flips: Mapping[str, int] | None = None,
    metrics: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Change a checkpoint, and write it as its own writer would.

    Args:
        run: The run's folder.
        step: Step of the checkpoint.
        flips: Bits to flip in the first number of a leaf, by the leaf's name.
        metrics: Numbers that the checkpoint has instead of its own.
        extra: The same for what the trainer saved beside the arrays.
    """
    opened = open_run(run, trust=True)
    assert opened.config is not None
    pair = make_pair(opened.config, opened.files.data().state)
    place = run / "checkpoints" / str(step)
    saved = read_description(place)
    with Checkpointer(place.parent, *pair, read_only=True) as at:
        at.restore(step)
    for root, each in zip(("model", "optimizer"), pair, strict=True):
        state = nnx.to_flat_state(nnx.state(each))
        for path, variable in state:
            bit = (flips or {}).get("/".join([root, *map(str, path)]))
            if bit is not None:
                bits = np.array(variable.get_value())
                bits.reshape(-1).view(f"u{bits.itemsize}")[0] ^= 1 << bit
                variable.set_value(jnp.asarray(bits))
        nnx.update(each, nnx.from_flat_state(state))
    with Checkpointer(run.parent / "forged", *pair) as saving:
        new = {**saved.metrics, **(metrics or {})}
        saving.save(step, new, {**(saved.extra or {}), **(extra or {})})
    shutil.rmtree(place)
    shutil.move(run.parent / "forged" / str(step), place)
    shutil.rmtree(run.parent / "forged")


def facts(value: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of each kind of fact in a receipt."""
    if not isinstance(value, dict):
        yield path
        return
    table = cast("dict[str, Any]", value)
    names = [name for name in table if not name.isdecimal()] or [*table][-1:]
    for name in names:
        yield from facts(table[name], *path, name)


def other(value: Any) -> Any:
    """Return a value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}0"
        case list():
            return [*cast("list[Any]", value), "x"]
        case _:
            return 7


def forged(receipt: Path, file: Path, *paths: Sequence[str]) -> Path:
    """Write a receipt in which some facts are others, and the order of all members."""
    table = json.loads(receipt.read_text())
    for *outer, last in paths:
        inner = table
        for name in outer:
            inner = inner[name]
        inner[last] = other(inner[last])
    file.write_text(json.dumps(dict(reversed(table.items()))))
    return file
