"""From a path to an open corpus, and from windows to bytes."""
