"""Prepare a corpus from many input files, in many processes.

A preparation divides its inputs into units, which any processes write in any order, and
then commits the shards of all units at once.
"""
