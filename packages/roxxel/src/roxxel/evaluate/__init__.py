"""What a trained model does: the texts that it continues, and how well it scores."""
