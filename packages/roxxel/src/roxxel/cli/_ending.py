"""How a command ends: with a code, and with a sentence where something is wrong."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED = 1
INTERRUPTED = 130


def ended_well(command: Callable[[], None]) -> int:
    """Run a command and return its exit code.

    An error that says what is wrong with the input is shown as its sentence. Anything
    else is a fault of ours, and its traceback is what helps to mend it.

    Args:
        command: What to do.
    """
    try:
        command()
    except BrokenPipeError:
        # Whoever read our output has gone, and what is buffered must go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except Exception as error:
        if not _is_meant_for_users(error):
            raise
        return _say(error, REFUSED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except SystemExit as stop:
        if type(stop) is SystemExit:
            raise
        # The trainer's way of saying that a signal ended the run.
        return _say(stop, stop.code if isinstance(stop.code, int) else REFUSED)
    return 0


def _is_meant_for_users(error: Exception) -> bool:
    """Return whether the error is one of Roxxel's own kinds, or the system's."""
    if isinstance(error, OSError):
        return True
    return type(error).__module__.partition(".")[0].startswith("roxxel")


def _say(what: object, code: int) -> int:
    sentence = " ".join(str(what).split())
    print(f"roxxel: {sentence}", file=sys.stderr, flush=True)
    return code
