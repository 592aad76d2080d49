"""Write documents into shards, and commit the shards as a corpus."""
