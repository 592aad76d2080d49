"""The signals by which people and schedulers ask a program to end soon.

SIGTERM comes from schedulers, and SIGINT from Ctrl-C. SIGHUP means that the terminal
was closed, or the connection to it was lost. Slurm, Grid Engine and LSF can send
SIGUSR2 before a time limit, and the system sends SIGXCPU at the limit of CPU time. The
default of each of them ends a program at once. SIGQUIT is not in the list: whoever
sends it wants the program to end at once.
"""

from __future__ import annotations

import signal

URGENT = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the program at once when they come a second time."""

WARNINGS = (signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that may come again while the run saves: a closed terminal sends SIGHUP
twice, and the system sends SIGXCPU every second. A signal of `URGENT` may follow
them."""

SAVE = signal.SIGUSR1
"""The signal that requests a checkpoint; the run continues."""
