"""Compare and swap: replace one small object if nobody else has replaced it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_store.errors import BucketError

if TYPE_CHECKING:
    from roxxel_store.client import Bucket, Version


def swap_object(
    bucket: Bucket, name: str, data: bytes, version: Version | None
) -> Version | None:
    """Write an object if it still has `version`; for None, if it does not exist.

    The answer of the store may be lost, so neither a failure nor a refusal is a proof:
    if the object then holds `data`, it counts as written.

    Returns:
        The new version, or None if another program has replaced the object.

    Raises:
        FileNotFoundError: The object is gone, or there is no such bucket.
        BucketError: The request failed; unless `is_refused`, it may still take effect.
    """
    failure: BucketError | None = None
    try:
        new = bucket.replace(name, data, version)
    except BucketError as error:
        if error.is_refused:
            raise
        new, failure = None, error
    if new is not None:
        return new
    try:
        found = bucket.hasty().get(name)
    except (BucketError, FileNotFoundError) as error:
        raise failure or error from None
    if found.data == data:
        return found.version
    if failure is not None and found.version == version:
        raise failure
    return None
