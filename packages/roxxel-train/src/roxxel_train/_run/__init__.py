"""What a run does: its session, state, evaluations, and lines of the log.

`preflight.py` finds what it needs of its machine before the first step.
"""
