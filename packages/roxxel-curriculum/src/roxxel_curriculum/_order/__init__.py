"""The arithmetic of the order: which window of a source each of its samples is.

Version 1. Golden files pin it; `docs/arithmetic.md` derives it.
"""
