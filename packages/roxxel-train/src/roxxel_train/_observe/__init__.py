"""What is measured of a run: losses, rates, evaluations."""
