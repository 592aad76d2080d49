from __future__ import annotations

import numpy as np
from flax import nnx
from roxxel.models import Llama, LlamaConfig
from roxxel.quickstart.corpus import SEPARATOR
from roxxel.quickstart.sample import decode, sample_text


def test_a_sample_begins_with_the_prompt_and_follows_the_seed() -> None:
    config = LlamaConfig.tiny(width=16, num_layers=1, hidden=24)
    model = Llama(config, rngs=nnx.Rngs(0))

    texts = [sample_text(model, "def ", num_bytes=12, seed=seed) for seed in (0, 0, 1)]

    assert texts[0].startswith("def ")
    assert texts[0] == texts[1] != texts[2]


def test_bytes_that_would_upset_a_terminal_are_replaced() -> None:
    tokens = np.frombuffer(b"a\n\tb\x1b[2J\xff\r\x00", np.uint8).astype(np.int32)

    assert decode(tokens) == "a\n\tb\ufffd[2J\ufffd\ufffd\ufffd"


def test_a_separator_ends_the_text() -> None:
    assert decode(np.array([97, SEPARATOR, 98])) == "a"
