"""Choosing, verifying and reading a step."""
