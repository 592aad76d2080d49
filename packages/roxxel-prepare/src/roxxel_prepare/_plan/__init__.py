"""Divide inputs into units, and say what a preparation will write."""
