"""What a curriculum refuses, told apart from what goes wrong in a program."""

from __future__ import annotations


class CurriculumError(ValueError):
    """A phase, schedule or curriculum that cannot be met, or a past that differs.

    The message is one sentence for the person who wrote the schedule; a command line
    can print it without a traceback.
    """
