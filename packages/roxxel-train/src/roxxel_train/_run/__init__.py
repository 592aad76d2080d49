"""What a run does: its session, its state, its evaluations, the lines of its log."""
