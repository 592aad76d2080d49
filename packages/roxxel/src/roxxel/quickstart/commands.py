"""How the user goes on after the quickstart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Commands:
    """What the user may type next.

    Attributes:
        quickstart: The quickstart on this folder.
        report: Draws the run.
    """

    quickstart: str
    report: str
