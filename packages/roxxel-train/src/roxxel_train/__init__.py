"""A training loop for Flax NNX language models that never waits and never forgets."""
