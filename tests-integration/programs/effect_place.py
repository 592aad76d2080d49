"""Does the place in training decide what is memorised?

Ten texts of random letters are read once each, at steps that `where` names. A control
reads the same batches and learns none of the ten. Ten more texts are never read: they
say what the ten taught about random letters as such.
"""

import numpy as np
from effects import SEEDS, Learner, verdict, write_library
from roxxel import Curriculum, Phase, Roxxel

STEPS, ROWS, LENGTH = 300, 4, 129
NUM_READ = 10


def write_texts():
    """Write texts of one window each; return those that are read, and all tokens."""
    random = np.random.default_rng(1)
    words = random.integers(ord("a"), ord("z") + 1, (2 * NUM_READ, 32))
    texts = [4 * bytes(word.tolist()).decode() for word in words]
    corpora = Roxxel("texts.rox"), Roxxel("all_texts.rox")
    corpora[0].write(texts[:NUM_READ], tokenizer="bytes")
    corpora[1].write(texts, tokenizer="bytes")
    tokens = corpora[1].read(LENGTH * np.arange(len(texts)), LENGTH)
    return corpora[0], tokens.astype(np.int32)


def main():
    library, _ = write_library(300)
    corpus, texts = write_texts()
    share = NUM_READ / (STEPS * ROWS)
    phase = Phase(STEPS, ROWS, LENGTH, weights={"self": 1 - share, "texts": share})
    learner = Learner(rate=3e-3, context=LENGTH - 1)
    gains, is_late_better = [], []
    for seed in SEEDS:
        losses = []
        for without in ({}, {"texts": range(NUM_READ)}):
            curriculum = Curriculum(
                library, [phase], {"texts": corpus}, without=without
            )
            sampler = curriculum.sampler(seed, fields=["tokens", "loss_mask"])
            arrays = learner.train(map(sampler.batch, range(STEPS)), seed)
            losses.append(learner.losses(arrays, texts))
        steps = [
            next(iter(sampler.where("texts", LENGTH * text, LENGTH * (text + 1)))).step
            for text in range(NUM_READ)
        ]
        lower = losses[1] - losses[0]
        gain = (lower[:NUM_READ] - lower[NUM_READ:].mean())[np.argsort(steps)]
        gains.append(gain)
        is_late_better.append(gain[5:].mean() > gain[:5].mean())
        print(f"seed {seed}: " + "  ".join(f"{each:+.2f}" for each in gain))
    print("read at step: " + "  ".join(map(str, sorted(steps))))
    print("the loss is lower by: " + "  ".join(f"{x:.2f}" for x in np.mean(gains, 0)))
    verdict("the last five texts are known better than the first five", is_late_better)


if __name__ == "__main__":
    main()
