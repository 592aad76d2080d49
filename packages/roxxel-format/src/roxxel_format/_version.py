"""The version of the package, which every shard records as its creator."""

__version__ = "0.1.0"
