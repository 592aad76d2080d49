"""The log of a run: text, rows of metrics, the terminal and sinks.

`logger.py` has the public class. A call of `Logger` queues work on threads, which write
the files (`files.py`), draw the terminal (`terminal.py`) and call the sinks.
"""
