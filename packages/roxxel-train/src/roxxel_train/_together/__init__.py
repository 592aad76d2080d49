"""How the processes of a run find each other, agree on steps, and end together."""
