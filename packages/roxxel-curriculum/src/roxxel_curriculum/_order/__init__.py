"""The arithmetic of the order: which window of a source the k-th sample reads.

Golden files pin the order of each version; `docs/arithmetic.md` derives the order.
"""

ARITHMETIC_VERSION = 1
"""Version of the order. Every key and every state contains this number."""

PRIMARY = "self"
"""The primary source in the order and in states; its name, unless it has another."""
