"""Leaves of a tree, and the files that hold them."""
