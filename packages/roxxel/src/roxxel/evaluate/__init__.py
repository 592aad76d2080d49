"""What a trained model does: continue texts, and score on tasks."""
