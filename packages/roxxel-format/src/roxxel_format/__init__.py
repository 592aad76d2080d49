"""Sharded, memory-mapped token files for language model training."""
