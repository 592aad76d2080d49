"""Fetching tokenizers."""
