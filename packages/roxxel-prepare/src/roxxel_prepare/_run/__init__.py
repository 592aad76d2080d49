"""Write the units of a preparation, and commit them."""
