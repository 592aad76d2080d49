"""Divide inputs into units, and describe what a preparation will write."""
