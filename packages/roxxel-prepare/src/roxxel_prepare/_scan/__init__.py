"""Find text of evaluation sets in a corpus: words, n-grams, units and their receipt."""
