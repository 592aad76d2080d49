"""The log of a run: text, rows of metrics, the terminal and sinks.

`logger.py` has the public class `Logger`. Its methods queue work for threads, which
write the files (`_files/log.py`), draw the terminal (`terminal.py`) and call the sinks.
"""
