"""What this program does now, for the programs that wait for it.

Code that may take long declares this in a `with` block, which costs no request.
`roxxel_train` publishes it with its signs of life. So if a process holds up all others,
messages name it and the file that it reads. `roxxel_train` uses this module; user
programs need not.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator


class Activity(NamedTuple):
    """What a thread does; with `waits`, the call at which it waits for the others.

    Example:
        >>> with doing("reading a file"):
        ...     list(activities().values())
        [Activity(what='reading a file', waits=False)]
    """

    what: str
    waits: bool = False


_activities: dict[int, Activity] = {}


@contextmanager
def doing(what: str, *, waits: bool = False) -> Generator[None]:
    """Declare what this thread does in the block; an inner block hides an outer one."""
    thread = threading.get_ident()
    outer = _activities.get(thread)
    _activities[thread] = Activity(what, waits)
    try:
        yield
    finally:
        if outer is None:
            del _activities[thread]
        else:
            _activities[thread] = outer


def activities() -> dict[int, Activity]:
    """Return what each thread does now, by its identifier."""
    return dict(_activities)
