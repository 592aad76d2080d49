"""Pre-train language models in JAX."""
