"""Fetch a tokenizer's files from the Hugging Face hub, or from its cache.

After a refused connection, the hub's library tries again for half a minute, and for
minutes if a firewall drops packets, even if the cache holds the file. A node of a
cluster often cannot reach the hub, so this module asks once, and then uses the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_store.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

_TIMEOUT_S = 10


def fetch(name: str, file: str, others: Iterable[str]) -> tuple[Path, list[Path]]:
    """Return the paths, in a local cache, of a file and of other files that exist.

    Raises:
        OSError: The hub cannot be reached, and the cache does not hold the file.
        Exception: As the library raises it, for example because the name is unknown or
            private.
    """
    with _quiet():
        reason = _why_unreachable(name, file)
        try:
            path = _cached(name, file, is_offline=reason is not None)
        except Exception as error:
            if reason is None:
                raise
            raise OSError(
                f"the hub cannot be reached ({reason}), and its cache does not hold "
                f"{file}"
            ) from error
        return path, [*_existing(name, others, is_offline=reason is not None)]


def _existing(name: str, files: Iterable[str], *, is_offline: bool) -> Iterator[Path]:
    errors: Any = importlib.import_module("huggingface_hub.errors")
    for file in files:
        try:
            yield _cached(name, file, is_offline=is_offline)
        except errors.EntryNotFoundError as error:
            # Also raised if the connection is cut: then the file may well exist.
            if isinstance(error, errors.LocalEntryNotFoundError) and not is_offline:
                raise


def _cached(name: str, file: str, *, is_offline: bool) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    return Path(hub.hf_hub_download(name, file, local_files_only=is_offline))


def _why_unreachable(name: str, file: str) -> str | None:
    """Return why the hub gave no answer; None if it answered, even with an error."""
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, file), timeout=_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - see below
        # The libraries that it used over time have no error in common.
        if getattr(error, "response", None) is not None:
            return None
        return reason_of(error)
    return None


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Hide the log lines about each attempt: the error says that all failed."""
    # Its import sets the level, so it comes first.
    importlib.import_module("huggingface_hub.file_download")
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
