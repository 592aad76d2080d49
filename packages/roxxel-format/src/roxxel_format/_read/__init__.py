"""Read shards and columns: maps, the reader of a corpus, views, verification."""
