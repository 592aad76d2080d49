"""Recognise, decompress and decode input files."""
