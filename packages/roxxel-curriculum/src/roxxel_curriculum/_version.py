"""The version of the arithmetic: another number, another order of the data."""

ARITHMETIC_VERSION = 1
