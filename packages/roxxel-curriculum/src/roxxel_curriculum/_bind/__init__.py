"""From a declaration and its data to the rows of a step of a new or resumed run."""
