"""URLs of corpora in buckets and on web servers."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

SCHEMES = ("s3", "gs", "az", "https", "http")
DEFAULT_TIMEOUT_S = 60.0
"""Seconds after which a request fails, unless the caller chooses."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(text: str) -> bool:
    """Return whether a text is a URL and not a path."""
    return _URL.match(text) is not None


def checked_url(url: str) -> str:
    """Return a URL that names an object, a pattern or a folder.

    Raises:
        ValueError: The scheme is unknown, the key is missing, or the URL has a query or
            a password. The message leaves these out.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"{shown}: unknown kind of URL; known kinds are {known}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"{shown}: the URL has a password, a query or a fragment; remove it, and "
            "pass credentials in the environment"
        )
    if not parts.netloc or not parts.path.strip("/"):
        raise ValueError(
            f"{shown}: names no object; pass a URL such as s3://bucket/wiki_*.rox"
        )
    return url.rstrip("/")
