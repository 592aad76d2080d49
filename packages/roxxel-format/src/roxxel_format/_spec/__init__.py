"""What a shard and a manifest are: bytes to values and back. Touches no files."""
