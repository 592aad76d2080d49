"""Preparing a corpus from many input files, on many processes."""
