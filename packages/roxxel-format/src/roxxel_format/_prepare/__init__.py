"""Prepare a corpus from many input files, in many processes."""
