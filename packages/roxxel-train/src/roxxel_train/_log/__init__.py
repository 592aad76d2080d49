"""The log of a run: text, rows of metrics, the terminal and sinks.

`logger.py` is the public part. It queues calls on worker threads (`worker.py`), which
write the files (`files.py`, `lines.py`), draw the terminal (`terminal.py`) and call the
sinks (`sink.py`).
"""
