"""What a run is: its folder, its state, its evaluations, and its processes."""
