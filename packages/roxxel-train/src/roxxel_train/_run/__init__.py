"""What a run does: its session, state, evaluations, and lines of the log."""
