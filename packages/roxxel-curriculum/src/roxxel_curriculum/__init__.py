"""Which tokens each training step sees: phases, blends and order as pure arithmetic."""
