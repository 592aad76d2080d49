"""Do contexts that grow from short to long end at a lower loss than long ones?

All steps have equally many tokens, so both plans do the same updates on as much text.
Both are evaluated on long rows of held-out files.
"""

import numpy as np
from effects import SEEDS, Learner, verdict, write_library
from roxxel import Curriculum, Phase

STEPS, TOKENS = 100, 2048
LONGEST = 512
NUM_ROWS = 16
PLANS = {
    "long": [(LONGEST, 1.0)],
    "short to long": [(64, 0.25), (128, 0.25), (256, 0.25), (LONGEST, 0.25)],
}


def phases(plan):
    return [
        Phase(round(share * STEPS), TOKENS // context, context + 1)
        for context, share in plan
    ]


def main():
    library, held_out = write_library(300)
    starts = np.linspace(0, held_out.num_tokens - LONGEST - 1, NUM_ROWS).astype(int)
    rows = held_out.read(starts, LONGEST + 1).astype(np.int32)
    learner = Learner(rate=3e-3)
    lower = []
    for seed in SEEDS:
        ends = {}
        for name, plan in PLANS.items():
            sampler = Curriculum(library, phases(plan)).sampler(seed)
            arrays = learner.train(map(sampler.batch, range(STEPS)), seed)
            ends[name] = float(learner.losses(arrays, rows).mean())
        print(f"seed {seed}: " + ", ".join(f"{n} {x:.4f}" for n, x in ends.items()))
        lower.append(ends["short to long"] < ends["long"])
    verdict("short to long ends lower", lower)


if __name__ == "__main__":
    main()
