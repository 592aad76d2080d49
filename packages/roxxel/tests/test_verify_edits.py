"""A run of several starts with edits: each step is trained again as it was."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel, open_run, replay, verify
from roxxel.config import load_config, make_trainer
from roxxel_train import RunFolderError

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import optax
from flax import nnx


def make(rate=0.03):
    model = nnx.Embed(64, 4, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param), loss


def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model.attend(model(tokens[:, :-1])), tokens[:, 1:]
    )
    count = mask.sum()
    return (losses * mask).sum() / count.clip(1), {"loss_weight": count}
"""

CONFIG = """\
model = "tiny:make"
save_path = "run"

[sources]
self = "web_*.rox"

[[phases]]
steps = 12
batch_size = 4
seq_len = 9

[eval.old]
path = "old_*.rox"
steps = 2
batch_size = 2
seq_len = 9

[trainer]
best_metric = "eval_loss/old"
checkpoint_every = 3
eval_every = 2
fields = ["tokens", "loss_mask"]
log_every = 1
max_to_keep = 9
"""
EDITED = f"""{CONFIG}
[model_args]
rate = 0.01

[without]
self = [[0, 8]]
"""
# Step 9 is a multiple of the first interval between saves, and not of this one.
WIDENED = f"""{CONFIG.replace("every = 3", "every = 4")}
[without]
self = [[0, 16]]

[eval.new]
path = "new_*.rox"
steps = 2
batch_size = 2
seq_len = 9
"""
STARTS = ((CONFIG, 3), (EDITED, 6), (CONFIG, 7), (WIDENED, 9), (WIDENED, None))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of 12 steps; its corpora have grown since."""
    folder = tmp_path_factory.mktemp("edited")
    random = np.random.default_rng(0)
    corpora = [Roxxel(folder / f"{name}_*.rox") for name in ("web", "old", "new")]
    for corpus in corpora:
        corpus.write((random.integers(0, 64, 20) for _ in range(30)), vocab_size=64)
    (folder / "tiny.py").write_text(MODEL)
    for config, until in STARTS:
        (folder / "run.toml").write_text(config)
        make_trainer(load_config(folder / "run.toml")).run(until)
    for corpus in corpora:
        corpus.write((random.integers(0, 64, 20) for _ in range(30)), exist="append")
    return folder


@pytest.mark.parametrize("steps", [(0, 12), (3, 8), (9, 12)])
def test_each_step_has_the_config_corpora_and_masks_of_its_start(
    trained: Path, steps: tuple[int, int]
) -> None:
    [found] = verify(trained / "run", range(*steps), trust=True)

    assert found.is_equal, str(found)
    assert (found.start, found.stop) == steps
    assert found.num_leaves > 0


def test_a_mask_that_was_written_later_is_not_learned(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    corpus = Roxxel(tmp_path / "copy" / "web_*.rox")
    corpus.write_column("loss_mask", np.arange(corpus.num_tokens) % 2, per="token")

    [found] = verify(tmp_path / "copy" / "run", range(1), trust=True)

    assert found.is_equal, str(found)


def test_a_held_out_mask_counts_from_the_start_that_reads_it(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("web", "old"):
        corpus = Roxxel(tmp_path / f"{name}_*.rox")
        corpus.write((random.integers(0, 64, 20) for _ in range(30)), vocab_size=64)
    corpus.write_column("loss_mask", np.arange(corpus.num_tokens) % 2, per="token")
    both = MODEL.replace(
        'batch["tokens"], batch["loss_mask"][:, 1:]',
        "(batch, batch[:, 1:] * 0 + 1) if hasattr(batch, 'ndim') else "
        '(batch["tokens"], batch["loss_mask"][:, 1:])',
    )
    (tmp_path / "tiny.py").write_text(both)
    config = tmp_path / "run.toml"
    for fields, until in ((["tokens"], 3), (["tokens", "loss_mask"], 6)):
        names = f"fields = {fields}"
        config.write_text(re.sub("fields = .*", names, CONFIG))
        make_trainer(load_config(config)).run(until)

    [found] = verify(tmp_path / "run", range(6), trust=True)

    assert found.is_equal, str(found)


def test_a_proxy_leaves_out_what_its_file_listed_then(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write((random.integers(0, 64, 20) for _ in range(60)), vocab_size=64)
    (tmp_path / "tiny.py").write_text(MODEL)
    config, listed = tmp_path / "run.toml", tmp_path / "withdrawn.txt"
    head, _, trainer = CONFIG.partition("[eval.old]")
    trainer = re.sub("(best_metric|eval_every).*\n", "", trainer.partition("\n\n")[2])
    config.write_text(
        f'{head}{trainer}[proxy]\nscale = 0.5\n\n[without]\nself = "withdrawn.txt"\n'
    )
    for stop, until in ((20, 3), (40, None)):  # a save of step 3 is due in any case
        listed.write_text("".join(f"{document}\n" for document in range(stop)))
        make_trainer(load_config(config)).run(until)
    listed.write_text("59\n")

    for steps in (range(6), range(3, 6)):
        [found] = verify(tmp_path / "run", steps, trust=True)
        assert found.is_equal, str(found)


def test_a_save_is_missed_where_the_start_of_then_had_to_save(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(run / "checkpoints" / "6")
    log = run / "metrics.jsonl"
    log.write_text(re.sub(r'\{"kind": "save", "step": 6,.*\n', "", log.read_text()))

    [found] = verify(run, range(5, 6), trust=True)

    assert (found.start, found.stop) == (3, 6)
    assert "kind 'save': 0 in the log and 1" in str(found)


def test_a_replay_begins_before_a_document_is_learned_between_its_withdrawals(
    trained: Path, tmp_path: Path
) -> None:
    run = trained / "run"
    sampler = open_run(run).sampler(("loss_mask",))
    corpus = Roxxel(trained / "web_*.rox")
    learned: dict[int, int] = {}
    for document in range(8):  # withdrawn in the steps 3 to 5, and from step 7 on
        start, stop, _ = corpus.document_range(document)
        steps = {each.step for each in sampler.where("self", start, stop)}
        for step in sorted(steps & {0, 1, 2, 6})[:1]:
            learned[document] = step

    assert learned
    for document, step in learned.items():
        without = {"self": [document]}
        with pytest.raises(RunFolderError, match=f"step {step} has learned it before"):
            replay(run, without, step=9, out=tmp_path / "out", trust=True)
