"""The arithmetic of the order: which window of a source each of its samples is.

Golden files pin each version. `docs/arithmetic.md` derives the arithmetic.
"""

ARITHMETIC_VERSION = 1
"""Part of every key and of every state: another version is another order."""
