"""Errors of files and buckets, and what the error of a library says."""

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


def is_ours(error: BaseException) -> bool:
    """Return whether an error is of Roxxel's classes.

    Its sentence says what to do, so a user needs no traceback.

    Example:
        >>> is_ours(BucketError("s3://bucket/a: no answer")), is_ours(OSError())
        (True, False)
    """
    return type(error).__module__.partition(".")[0].startswith("roxxel")


def reason_of(error: BaseException) -> str:
    r"""Return the text of another library's error, to use within a sentence.

    The text is one line without a final period; an error without text gives its type.

    Example:
        >>> reason_of(ValueError("expected value\n  at line 1."))
        'expected value at line 1'
        >>> reason_of(KeyError())
        'KeyError'
    """
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
