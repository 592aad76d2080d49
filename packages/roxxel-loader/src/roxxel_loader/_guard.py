"""Locks that a forked child finds free.

A forked child has a copy of every lock, but only the thread that forked. If another
thread held a lock at that moment, no thread of the child would ever release the copy.
"""

from __future__ import annotations

import os
import threading
import weakref


class Guard:
    """Holds a lock that is free in a forked child, in a copy and after unpickling.

    Write `with guard.lock:` each time, because a forked child replaces the attribute.
    A fork may happen between two statements under the lock, so the data that the lock
    protects must be consistent after each statement.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _GUARDS.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, ()


_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


def _renew_locks() -> None:
    for guard in _GUARDS:
        guard.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
