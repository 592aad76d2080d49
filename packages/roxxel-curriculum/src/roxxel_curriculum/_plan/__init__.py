"""From declared phases to solved ones, and from those to the plan that people read."""
