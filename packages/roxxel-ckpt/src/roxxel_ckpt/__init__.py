"""Asynchronous, verified Orbax checkpoints of Flax NNX models and optimizers."""
