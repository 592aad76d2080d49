"""Errors of files and buckets."""

from __future__ import annotations


class BucketError(OSError):
    """A bucket or a web server refused, failed, or did not answer in time.

    The message names the URL, the bytes and the last answer, and says what to do.

    Attributes:
        is_refused: Whether the request certainly changed nothing. Any other request
            that failed may still take effect.

    Example:
        >>> BucketError("s3://bucket/wiki.rox: no connection").is_refused
        False
    """

    is_refused: bool = False
