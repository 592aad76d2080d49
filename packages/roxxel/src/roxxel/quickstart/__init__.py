"""`roxxel quickstart`: a whole run on real text, without a download.

The sources of Python's own standard library become a corpus, a config file declares a
curriculum of two phases over it, and the trainer trains a small transformer from that
file. The run can be killed and started again at any moment. This package is an example
to read and copy: it uses only the public names of Roxxel.
"""
