"""Where the bytes of a corpus live: names, files, locks, atomic commits."""
