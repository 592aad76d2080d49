"""Locks that are free in a forked child.

A fork copies every lock, but only the calling thread. If another thread holds a lock
during the fork, no thread of the child ever releases the child's copy.
"""

from __future__ import annotations

import os
import threading
import weakref


class Guard:
    """Holds a lock that is free in a forked child, in a copy, and after unpickling.

    A thread that holds the lock may acquire the lock again.

    Always write `with guard.lock:`, because a forked child replaces `lock`. A fork may
    interrupt the block, so each statement must leave the protected data consistent.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _GUARDS.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, ()


_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


def _renew_locks() -> None:
    for guard in _GUARDS:
        guard.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)
