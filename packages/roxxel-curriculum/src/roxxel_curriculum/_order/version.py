"""The version of the arithmetic, which is part of every key and of every state."""

ARITHMETIC_VERSION = 1
