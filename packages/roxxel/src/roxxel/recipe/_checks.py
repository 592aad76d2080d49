"""Checks of arguments that may come from a config file and so have any type."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.arguments import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_number(name: str, value: Any, most: float = math.inf) -> None:
    """Raise TypeError unless a value is a number, ValueError unless in `[0, most]`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and 0 <= number <= most):
        upper = f" and at most {most:g}" if math.isfinite(most) else ""
        raise ValueError(f"{name} must be at least 0{upper}, got {value}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError, with the nearest choice, unless a value is one of them."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return
    hint = nearest(str(cast("object", value)), known)
    raise ValueError(
        f"{name} {value!r} is unknown; choose one of {', '.join(known)}"
        f"{'; ' * bool(hint)}{hint}"
    )
