"""Reading: shards, the one reader, prefetching, views, verification."""
