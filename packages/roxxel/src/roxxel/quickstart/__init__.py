"""`roxxel quickstart`: a whole run on real text, without a download.

The corpus is the source code of Python's own standard library. A config file declares a
curriculum of two phases over this corpus, and the trainer trains a small transformer.
You may kill the run at any moment and start it again. This package is an example to
read and copy: it uses only the public names of Roxxel.
"""
