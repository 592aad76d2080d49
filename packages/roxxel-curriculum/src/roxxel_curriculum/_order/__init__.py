"""The arithmetic of the order: which window of a source the k-th sample reads.

Golden files pin the order of each version; `docs/arithmetic.md` derives the order.
"""

ARITHMETIC_VERSION = 1
"""Version of the order. Every key and every state contains this number."""

PRIMARY = "self"
"""Name of the primary source in the order and in states, and its default name."""
