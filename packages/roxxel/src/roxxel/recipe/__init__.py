"""The arguments of `roxxel.models:llama`, which `roxxel plan` checks without JAX."""
