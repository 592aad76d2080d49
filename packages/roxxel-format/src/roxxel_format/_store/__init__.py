"""Names, files and locks of a corpus, and atomic replacement of files."""
