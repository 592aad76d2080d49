"""A run that exists: opened as one object, searched, listed, and trained on."""
