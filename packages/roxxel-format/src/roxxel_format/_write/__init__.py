"""Writing: documents in, shards out, the commit that makes them a corpus."""
