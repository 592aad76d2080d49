"""Convert shards and manifests between bytes and values, without files."""
