"""Find mistakes in models, optimizers and loss functions before the first step."""
